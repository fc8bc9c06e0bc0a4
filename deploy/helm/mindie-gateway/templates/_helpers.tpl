{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gateway.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "gateway.labels" . | nindent 2 }}
{{- end }}

{{- define "gateway.image" -}}
{{- if .Values.image.repository }}{{ .Values.image.repository }}
{{- else if eq .Values.mode "sidecar" }}mindie-gateway-sidecar
{{- else if eq .Values.accelerator "ascend" }}mindie-gateway-ascend
{{- else }}mindie-gateway-cpu
{{- end }}
{{- end }}

{{- define "gateway.grace" -}}
{{ add .Values.preStopSeconds .Values.drainSeconds 20 }}
{{- end }}

{{- /* vLLM's options, the same in both modes. */ -}}
{{- define "gateway.vllmArgs" -}}
- --served-model-name={{ .Values.model.servedName }}
{{- if eq .Values.accelerator "ascend" }}
- --tensor-parallel-size={{ .Values.npu.count }}
{{- end }}
{{- range .Values.vllmArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "gateway.args" -}}
- serve
{{- if eq .Values.mode "embedded" }}
- {{ .Values.model.path }}
{{- else }}
- --upstream=http://127.0.0.1:8000
- --upstream-generation-config={{ .Values.model.path }}
{{- end }}
- --host=0.0.0.0
- --port=1025
- --metrics-port=1027
- --drain-timeout={{ .Values.drainSeconds }}
{{- if .Values.tls.secretName }}
- --tls-cert-file=/secrets/tls/tls.crt
- --tls-key-file=/secrets/tls/tls.key
{{- else }}
- --allow-plain-http
{{- end }}
{{- if .Values.apiKeys.secretName }}
- --api-keys-file=/secrets/api/keys
{{- end }}
{{- if .Values.managementKeys.secretName }}
- --management-keys-file=/secrets/management/keys
{{- end }}
{{- range $name, $value := .Values.gateway }}
{{- if kindIs "bool" $value }}
- --{{ if not $value }}no-{{ end }}{{ $name }}
{{- else if kindIs "float64" $value }}
- --{{ $name }}={{ if eq $value (floor $value) }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- if eq .Values.mode "embedded" }}
{{ include "gateway.vllmArgs" . }}
{{- end }}
{{- end }}

{{- define "gateway.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gateway.resources" -}}
{{- $resources := deepCopy .resources }}
{{- if eq .root.Values.accelerator "ascend" }}
{{- $npus := dict .root.Values.npu.resourceName (toString .root.Values.npu.count) }}
{{- $resources = mergeOverwrite $resources (dict "limits" $npus) (dict "requests" $npus) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "gateway.modelMounts" -}}
- name: scratch
  mountPath: /scratch
- name: tmp
  mountPath: /tmp
- name: model
  mountPath: /models
  readOnly: true
{{- end }}

{{- define "gateway.npuMounts" -}}
- name: shared-memory
  mountPath: /dev/shm
- name: driver-libraries
  mountPath: /usr/local/Ascend/driver/lib64
  readOnly: true
- name: driver-version
  mountPath: /usr/local/Ascend/driver/version.info
  readOnly: true
- name: driver-install-info
  mountPath: /etc/ascend_install.info
  readOnly: true
- name: dcmi
  mountPath: /usr/local/dcmi
  readOnly: true
- name: npu-smi
  mountPath: /usr/local/bin/npu-smi
  readOnly: true
{{- end }}

{{- define "gateway.npuVolumes" -}}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.npu.sharedMemory }}
- name: driver-libraries
  hostPath:
    path: /usr/local/Ascend/driver/lib64
    type: Directory
- name: driver-version
  hostPath:
    path: /usr/local/Ascend/driver/version.info
    type: File
- name: driver-install-info
  hostPath:
    path: /etc/ascend_install.info
    type: File
- name: dcmi
  hostPath:
    path: /usr/local/dcmi
    type: Directory
- name: npu-smi
  hostPath:
    path: /usr/local/bin/npu-smi
    type: File
{{- end }}

{{- /* The secrets that are set, by the name of their volume. */ -}}
{{- define "gateway.secrets" -}}
{{- $secrets := dict "tls" .Values.tls.secretName "api" .Values.apiKeys.secretName "management" .Values.managementKeys.secretName }}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
{{ $name }}: {{ $secret }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gateway.probe" -}}
httpGet:
  path: {{ .path }}
  port: api
  {{- if .root.Values.tls.secretName }}
  scheme: HTTPS
  {{- end }}
{{- end }}
