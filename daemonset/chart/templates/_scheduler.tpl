{{- /* The version of kube-scheduler: that of the cluster, without its provider's suffix. */ -}}
{{- define "gpushare.schedulerTag" -}}
{{- $detected := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+(-(alpha|beta|rc)[.][0-9]+)?" .Capabilities.KubeVersion.Version -}}
{{- $tag := default $detected .Values.secondScheduler.image.tag -}}
{{- $version := regexFind "^v?[0-9]+[.][0-9]+[.][0-9]+" $tag -}}
{{- if not $tag -}}
{{- fail (printf "the version of Kubernetes, %s, names no version of kube-scheduler: set secondScheduler.image.tag" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $version (semverCompare "<1.27.0-0" $version) -}}
{{- fail (printf "secondScheduler.image.tag is %s, and gpushare needs kube-scheduler 1.27 or newer: leave it empty for the version of the cluster, %s" $tag $detected) -}}
{{- end -}}
{{- $tag -}}
{{- end -}}

{{- /* The schedulers of pods that may request GPU memory, as JSON; empty: any. */ -}}
{{- define "gpushare.schedulerNames" -}}
{{- $own := ternary (list "gpushare-scheduler") list (eq .Values.scheduler "second") -}}
{{- default $own .Values.schedulerNames | toJson -}}
{{- end -}}

{{- /* The version of the API for MutatingAdmissionPolicies that the API server serves; empty: none.
Without a cluster, Helm assumes all of them, but before 1.36 they are off by default. */ -}}
{{- define "gpushare.mutatingPolicyVersion" -}}
{{- $found := list -}}
{{- range $version := list "v1" "v1beta1" -}}
{{- if $.Capabilities.APIVersions.Has (printf "admissionregistration.k8s.io/%s/MutatingAdmissionPolicy" $version) -}}
{{- $found = append $found $version -}}
{{- end -}}
{{- end -}}
{{- if include "gpushare.hasCluster" . -}}
{{- with $found }}{{ first . }}{{ end -}}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
v1
{{- else if or .Values.avoidGpuNodes (has "policy" (list .Values.secondScheduler.setSchedulerName .Values.gates.by)) -}}
v1beta1
{{- end -}}
{{- end -}}

{{- /* What sets schedulerName on pods that request GPU memory: policy, webhook or none. */ -}}
{{- define "gpushare.setsSchedulerName" -}}
{{- $wanted := .Values.secondScheduler.setSchedulerName -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if or (ne .Values.scheduler "second") (has "default-scheduler" .Values.schedulerNames) -}}
none
{{- else if ne $wanted "auto" -}}
{{- if and (eq $wanted "policy") (not (include "gpushare.mutatingPolicyVersion" .)) -}}
{{- fail "secondScheduler.setSchedulerName is policy, but this API server serves no MutatingAdmissionPolicy: set it to webhook, or to auto" -}}
{{- end -}}
{{- if and (eq $wanted "webhook") (semverCompare "<1.28.0-0" $version) -}}
{{- fail (printf "secondScheduler.setSchedulerName is webhook, but Kubernetes %s ignores the webhook's match conditions and would call it for every pod: set it to none, or to auto" $version) -}}
{{- end -}}
{{- $wanted -}}
{{- /* Before 1.36, an API that is served may still not be evaluated. */ -}}
{{- else if and (semverCompare ">=1.36.0-0" $version) (include "gpushare.mutatingPolicyVersion" .) -}}
policy
{{- else if semverCompare ">=1.28.0-0" $version -}}
webhook
{{- else -}}
none
{{- end -}}
{{- end -}}

{{- /* What adds the scheduling gate to pods: policy, webhook or none. */ -}}
{{- define "gpushare.gatesBy" -}}
{{- $by := .Values.gates.by -}}
{{- if not .Values.gates.enabled -}}
none
{{- else if ne $by "auto" -}}
{{- if and (eq $by "policy") (not (include "gpushare.mutatingPolicyVersion" .)) -}}
{{- fail "gates.by is policy, but this API server serves no MutatingAdmissionPolicy: set it to webhook, or to auto" -}}
{{- end -}}
{{- $by -}}
{{- /* Before 1.36, an API that is served may still not be evaluated. */ -}}
{{- else if and (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) (include "gpushare.mutatingPolicyVersion" .) -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end -}}

{{- /* The port at which the API server asks the extender about new pods; empty without a webhook. Some
managed clusters let the API server reach only port 10250 of pods, which on a node is the kubelet's. */ -}}
{{- define "gpushare.admissionPort" -}}
{{- if has "webhook" (list (include "gpushare.setsSchedulerName" .) (include "gpushare.gatesBy" .)) -}}
{{- ternary 10250 29770 (eq .Values.scheduler "second") -}}
{{- end -}}
{{- end -}}

{{- /* The namespaces where policy and webhook change pods: a failure never affects the cluster's own. */ -}}
{{- define "gpushare.namespaceSelector" -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, gpushare-system]}
{{- end -}}

{{- /* The pods that policy and webhook change; the extender decides the same. */ -}}
{{- define "gpushare.matchConditions" -}}
- name: names-no-other-scheduler
  expression: '!has(object.spec.schedulerName) || object.spec.schedulerName in ["default-scheduler", "gpushare-scheduler"]'
- name: is-to-be-scheduled
  expression: '!has(object.spec.nodeName) || object.spec.nodeName == ""'
- name: asks-for-gpu-memory
  expression: >-
    (object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers :
    [])).exists(c, has(c.resources) && ["aliyun.com/gpu-mem", "aliyun.com/gpu-count"].exists(r,
    (has(c.resources.limits) && r in c.resources.limits) ||
    (has(c.resources.requests) && r in c.resources.requests)))
{{- end -}}

{{- /* The webhook that adds the gate: a list of the root and the certificate authority, base64, empty with
cert-manager. */ -}}
{{- define "gpushare.gatesWebhook" -}}
{{- $text := include "gpushare.file" (list (index . 0) "components/gates-webhook/webhook.yaml") -}}
{{- with index . 1 -}}
{{- $text = replace "    clientConfig:\n" (printf "    clientConfig:\n      caBundle: %s\n" .) $text -}}
{{- end -}}
{{- if eq (index . 0).Values.certificates.source "cert-manager" -}}
{{- $injected := "metadata:\n  annotations: {cert-manager.io/inject-ca-from: gpushare-system/gpushare-extender}\n" -}}
{{- $text = replace "metadata:\n" $injected $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{- /* The webhook that sets the scheduler: as above. */ -}}
{{- define "gpushare.schedulerNameWebhook" -}}
{{- $ := index . 0 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: gpushare-scheduler-name
  labels: {{- include "gpushare.labels" (list $ "gpushare" "admission-webhook") | nindent 4 }}
  {{- if eq $.Values.certificates.source "cert-manager" }}
  annotations:
    cert-manager.io/inject-ca-from: gpushare-system/gpushare-extender
  {{- end }}
webhooks:
  - name: scheduler-name.gpushare.aliyun.com
    clientConfig:
      service:
        name: gpushare-extender
        namespace: gpushare-system
        port: 443
        path: /gpushare-scheduler/admission
      {{- with index . 1 }}
      caBundle: {{ . }}
      {{- end }}
    rules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
        scope: Namespaced
    namespaceSelector: {{- include "gpushare.namespaceSelector" . | nindent 6 }}
    matchConditions: {{- include "gpushare.matchConditions" $ | nindent 6 }}
    admissionReviewVersions: [v1]
    sideEffects: None
    reinvocationPolicy: IfNeeded  # another webhook may add a container
    timeoutSeconds: 5
    # Where a policy rejects pods of other schedulers, it says so better than a failed call.
    failurePolicy: {{ ternary "Ignore" "Fail" $.Values.policies }}
{{- end -}}
