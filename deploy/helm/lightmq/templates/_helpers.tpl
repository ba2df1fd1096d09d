{{- define "lightmq.name" -}}
{{- if contains "lightmq" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-lightmq" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* The part's own labels select its pods: (dict "root" $ "part" "controller") */ -}}
{{- define "lightmq.selector" -}}
app.kubernetes.io/name: lightmq
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "lightmq.labels" -}}
{{ include "lightmq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "lightmq.image" -}}
{{- $values := .root.Values.image -}}
{{- $repository := printf "lightmq/%s" .part -}}
{{- if $values.registry }}{{ $repository = printf "%s/%s" (trimSuffix "/" $values.registry) .part }}{{ end -}}
{{- $digest := get $values.digest .part -}}
{{- if $digest }}{{ printf "%s@%s" $repository $digest }}{{ else }}{{ printf "%s:%s" $repository (default .root.Chart.AppVersion $values.tag) }}{{ end -}}
{{- end }}

{{- /* The domain of a headless service: names of pods go in front. */ -}}
{{- define "lightmq.domain" -}}
{{ include "lightmq.name" .root }}-{{ .part }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "lightmq.controllers" -}}
{{- $root := . -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.controllers.replicas) }}
{{- $addresses = append $addresses (printf "%s-controller-%d.%s:9876" (include "lightmq.name" $root) $number (include "lightmq.domain" (dict "root" $root "part" "controller"))) }}
{{- end }}
{{- toJson $addresses }}
{{- end }}

{{- define "lightmq.tlsSecret" -}}
{{ default (printf "%s-tls" (include "lightmq.name" .)) .Values.tls.existingSecret }}
{{- end }}
{{- define "lightmq.mqttTlsSecret" -}}
{{ default (include "lightmq.tlsSecret" .) .Values.mqtt.tls.existingSecret }}
{{- end }}
{{- define "lightmq.keysSecret" -}}
{{ default (printf "%s-keys" (include "lightmq.name" .)) .Values.keys.existingSecret }}
{{- end }}
{{- define "lightmq.usersSecret" -}}
{{ default (printf "%s-users" (include "lightmq.name" .)) .Values.mqtt.usersSecret }}
{{- end }}

{{- /* Before anything else of an installation or upgrade; a number orders the hooks among themselves. */ -}}
{{- define "lightmq.beforehand" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "lightmq.podLabels" -}}
{{ include "lightmq.labels" . }}
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lightmq.podAnnotations" -}}
{{ include "lightmq.configChecksum" .root }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lightmq.podSecurity" -}}
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Where pods may run. */ -}}
{{- define "lightmq.podPlace" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector: {{- toYaml .values.nodeSelector | nindent 2 }}
tolerations: {{- toYaml .values.tolerations | nindent 2 }}
{{- end }}

{{- /* The same of pods that are spread over nodes, and over zones where there are some. */ -}}
{{- define "lightmq.podSpread" -}}
{{ include "lightmq.podPlace" . }}
{{- $selector := dict "matchLabels" (include "lightmq.selector" . | fromYaml) }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := . }}
  {{- if not (hasKey . "labelSelector") }}{{ $constraint = merge (dict "labelSelector" $selector) . }}{{ end }}
  - {{- toYaml $constraint | nindent 4 }}
  {{- end }}
{{- end }}
{{- if .values.affinity }}
affinity: {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {{- toYaml $selector | nindent 12 }}
{{- end }}
{{- end }}

{{- define "lightmq.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{- /* (dict "starts" 24): how often the startup probe may fail, every 5 s */ -}}
{{- define "lightmq.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: admin, scheme: HTTPS}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: {{ .starts }}
livenessProbe:
  httpGet: {path: /livez, port: admin, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: HTTPS}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- define "lightmq.configChecksum" -}}
checksum/config: {{ include (print .Template.BasePath "/config.yaml") . | sha256sum }}
{{- end }}
