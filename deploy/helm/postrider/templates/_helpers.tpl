{{- define "postrider.name" -}}
{{- if contains "postrider" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-postrider" (.Release.Name | trunc 42 | trimSuffix "-") }}{{ end -}}
{{- end }}

{{- define "postrider.selector" -}}
app.kubernetes.io/name: postrider
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "postrider.labels" -}}
{{ include "postrider.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "postrider.image" -}}
{{- $repository := required "image.repository is missing: set it to where you have pushed the image, such as registry.example.com/postrider" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "postrider.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "postrider.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{- define "postrider.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "postrider.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "postrider.secretVolumes" -}}
{{- range . }}
- name: secret-{{ . }}
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "postrider.secretMounts" -}}
{{- range . }}
- {name: secret-{{ . }}, mountPath: /etc/postrider/secrets/{{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- /* A password in .text would be readable in a ConfigMap or a Job. The message does not repeat it. */ -}}
{{- define "postrider.noPassword" -}}
{{- if regexMatch "://[^/?#@[:space:]]*:[^/?#@[:space:]]+@|(store|broker): .*\\bpassword=" .text }}{{ fail (printf "%s holds a password, and becomes a %s, which is no Secret: keep the password in a Secret that %s lists, and name its file, in %s" .at .kind .secrets .files) }}{{ end -}}
{{- end }}
