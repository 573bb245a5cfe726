{{- define "atoll.image" -}}
{{ required "set image to the name of the image in your registry; make dist builds it" .Values.image }}
{{- end }}

{{- define "atoll.tls" -}}
{{ .Values.tlsSecret | default (printf "%s-tls" .Release.Name) }}
{{- end }}

{{- define "atoll.labels" -}}
app.kubernetes.io/name: atoll
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
