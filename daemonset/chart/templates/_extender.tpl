{{- /* Whether the reading listener is open, for readers or for Prometheus. "true" or empty. */ -}}
{{- define "gpushare.isReadable" -}}
{{- if or .Values.reading.enabled .Values.monitoring.podMonitor.enabled }}true{{ end -}}
{{- end -}}

{{- /* The extender's file: that of kustomize's base, listeners, preemption and autoscalers, then the values. */ -}}
{{- define "gpushare.configuration" -}}
{{- $base := .Files.Get "files/base/configuration/extender.yaml" | fromYaml -}}
{{- $tls := dict "certificate" "/etc/gpushare-tls/tls.crt" "key" "/etc/gpushare-tls/tls.key" -}}
{{- $listen := dict -}}
{{- if include "gpushare.isReadable" . -}}
{{- $_ := set $listen "reading" (dict "port" 29768 "tls" $tls) -}}
{{- end -}}
{{- with include "gpushare.admissionPort" . -}}
{{- $_ := set $listen "admission" (dict "host" "0.0.0.0" "port" (int .) "tls" $tls "tolerations" $.Values.secondScheduler.podTolerations) -}}
{{- end -}}
{{- if $listen }}{{ $_ := set $base "listen" $listen }}{{ end -}}
{{- if .Values.preemption.enabled }}{{ $_ := set $base "preemption" (dict "enabled" true) }}{{ end -}}
{{- if .Values.autoscaling.enabled }}{{ $_ := set $base "queue" (dict "autoscaled" true) }}{{ end -}}
{{- $own := dict "memoryUnit" .Values.unit -}}
{{- with include "gpushare.schedulerNames" . | fromJsonArray }}{{ $_ := set $own "schedulerNames" . }}{{ end -}}
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
