{{- /* The labels of every object: a list of the root, the name and the component. */ -}}
{{- define "gpushare.labels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/component: {{ index . 2 }}
app.kubernetes.io/part-of: gpushare
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end -}}

{{- /* A file below files/ with the labels that kustomize adds: a list of the root and the path. */ -}}
{{- define "gpushare.file" -}}
{{- $ := index . 0 -}}
{{- $text := $.Files.Get (printf "files/%s" (index . 1)) -}}
{{- $labels := printf "app.kubernetes.io/part-of: gpushare, app.kubernetes.io/managed-by: %s" $.Release.Service -}}
{{- regexReplaceAll "(\n  labels: .*)}" $text (printf "${1}, %s}" $labels) -}}
{{- end -}}

{{- /* The image of both programs. */ -}}
{{- define "gpushare.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- define "gpushare.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The RuntimeClasses of NVIDIA's runtime; an empty name where that runtime is the default. */ -}}
{{- define "gpushare.runtimeClasses" -}}
{{- concat (list .Values.plugin.runtimeClassName) (list "nvidia" "nvidia-cdi" "nvidia-legacy") | uniq | toJson -}}
{{- end -}}

{{- define "gpushare.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The extender's file: that of kustomize's base, with the unit and the values. */ -}}
{{- define "gpushare.configuration" -}}
{{- $base := .Files.Get "files/base/configuration/extender.yaml" | fromYaml -}}
{{- $own := dict "memoryUnit" .Values.unit -}}
{{- mergeOverwrite $base (deepCopy .Values.extender.configuration) $own | toYaml -}}
{{- end -}}

{{- /* The extender's container without its probes, for both modes. */ -}}
{{- define "gpushare.extender" -}}
- name: extender
  {{- include "gpushare.image" . | nindent 2 }}
  command: [gpushare-extender]
  args: [--config=/etc/gpushare/extender.yaml]
  env:
    - name: GPUSHARE_ADDRESS
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
  resources: {{- .Values.extender.resources | toYaml | nindent 4 }}
  {{- include "gpushare.unprivileged" . | nindent 2 }}
  volumeMounts:
    - {name: configuration, mountPath: /etc/gpushare, readOnly: true}
    - {name: tls, mountPath: /etc/gpushare-tls, readOnly: true}
{{- end -}}

{{- define "gpushare.extenderVolumes" -}}
- name: configuration
  configMap: {name: gpushare-extender-configuration}
- name: tls
  secret: {secretName: gpushare-extender-tls, defaultMode: 0440}
{{- end -}}

{{- /* The pod of the extender, for both modes. */ -}}
{{- define "gpushare.extenderPod" -}}
serviceAccountName: gpushare-extender
priorityClassName: system-cluster-critical
terminationGracePeriodSeconds: 30
{{- include "gpushare.pullSecrets" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532  # reads the certificate's key
  seccompProfile: {type: RuntimeDefault}
{{- end -}}
