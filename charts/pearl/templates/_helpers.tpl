{{- define "pearl.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "pearl.selectorLabels" -}}
app.kubernetes.io/name: pearl-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pearl.labels" -}}
{{ include "pearl.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pearl
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Cluster-wide names carry the namespace, so that several releases live side by side. */}}
{{- define "pearl.clusterName" -}}
pearl-operator-{{ .Release.Namespace }}
{{- end -}}

{{/* RBAC rule: which ResourceClaims a trainer pod holds. */}}
{{- define "pearl.readClaims" -}}
{{- if .Values.sharedClaims.enabled }}
  - apiGroups: [resource.k8s.io]
    resources: [resourceclaims]
    verbs: [get]
{{- end }}
{{- end -}}

{{/* Of a pod's spec: where and as whom it runs. */}}
{{- define "pearl.placement" -}}
securityContext: {{- toYaml .Values.operator.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "priorityClassName" "runtimeClassName" "schedulerName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $.Values.operator $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of every container. */}}
{{- define "pearl.container" -}}
image: {{ include "pearl.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.operator.securityContext | nindent 2 }}
{{- end -}}

{{/* Annotations of what upgrades the CRDs; the argument is the hook's weight. */}}
{{- define "pearl.crdsHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* NetworkPolicy peers: agents, RL frameworks and trainers. */}}
{{- define "pearl.clients" -}}
- podSelector: {}
{{- range without .Values.trainerNamespaces .Release.Namespace }}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . }}}}
{{- end }}
{{- range .Values.clientNamespaceSelectors }}
- namespaceSelector: {matchLabels: {{ toJson . }}}
{{- end }}
{{- end -}}

{{/* NetworkPolicy peers: every worker of the release, borrowed ones included. */}}
{{- define "pearl.workers" -}}
{{- range prepend (without .Values.trainerNamespaces .Release.Namespace) .Release.Namespace }}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . }}}}
  podSelector: {matchLabels: {pearl.dev/component: worker}}
{{- end }}
{{- end -}}

{{- define "pearl.prometheus" -}}
{{- range .Values.networkPolicy.prometheusNamespaces }}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . }}}}
{{- end }}
{{- end -}}

{{- define "pearl.dns" -}}
- ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end -}}

{{- define "pearl.dnsAndApi" -}}
{{ include "pearl.dns" . }}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.apiServerCIDRs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}
