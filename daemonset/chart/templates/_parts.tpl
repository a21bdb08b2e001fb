{{- /* The labels of every object: a list of the root, the name and the component. */ -}}
{{- define "gpushare.labels" -}}
{{- include "gpushare.podLabels" . }}
{{- range $key, $value := include "gpushare.releaseLabels" (index . 0) | fromJson }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* The labels of pods, which do not change with the version. */ -}}
{{- define "gpushare.podLabels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/component: {{ index . 2 }}
app.kubernetes.io/part-of: gpushare
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end -}}

{{- /* The labels that depend on release and values, as JSON. */ -}}
{{- define "gpushare.releaseLabels" -}}
{{- $own := dict "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" -}}
{{- merge $own (dict "helm.sh/chart" $chart) .Values.labels | toJson -}}
{{- end -}}

{{- /* A file below files/ with the labels that kustomize adds: a list of the root and the path. */ -}}
{{- define "gpushare.file" -}}
{{- $ := index . 0 -}}
{{- $text := $.Files.Get (printf "files/%s" (index . 1)) -}}
{{- $labels := dict "app.kubernetes.io/part-of" "gpushare" "app.kubernetes.io/managed-by" $.Release.Service -}}
{{- $labels = merge $labels (include "gpushare.releaseLabels" $ | fromJson) | toJson -}}
{{- $labels = $labels | trimPrefix "{" | trimSuffix "}" | replace ":" ": " -}}
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

{{- /* Whether a cluster answers: with helm template, lookup finds nothing. "true" or empty. */ -}}
{{- define "gpushare.hasCluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end -}}
{{- end -}}

{{- /* The RuntimeClasses of NVIDIA's runtime; an empty name where that runtime is the default. */ -}}
{{- define "gpushare.runtimeClasses" -}}
{{- concat (list .Values.plugin.runtimeClassName) (list "nvidia" "nvidia-cdi" "nvidia-legacy") .Values.plugin.runtimeClasses | uniq | toJson -}}
{{- end -}}

{{- define "gpushare.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
