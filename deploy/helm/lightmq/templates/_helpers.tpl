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

{{- define "lightmq.podSecurity" -}}
automountServiceAccountToken: false
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
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "lightmq.selector" . | nindent 14 }}
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
