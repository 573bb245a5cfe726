package telemetry

import (
	"encoding/json"
	"io"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"

	"github.com/atoll-run/atoll/internal/eventlog"
)

// WriteEvents writes events as one line in the OTLP JSON file format. They are
// the same as those of [Telemetry.Ship], except that the resource does not name
// a daemon, because several may have written a log. version is the program's
// version. Without events it writes nothing.
func WriteEvents(w io.Writer, version string, events []eventlog.Record) error {
	if len(events) == 0 {
		return nil
	}
	records := make([]jsonRecord, len(events))
	for i := range events {
		records[i] = jsonRecordOf(&events[i])
	}
	line := jsonLogs{[]jsonResourceLogs{{
		Resource: jsonResource{jsonAttributes([]attribute.KeyValue{
			attribute.String("service.name", "atoll"), attribute.String("service.version", version),
		})},
		ScopeLogs: []jsonScopeLogs{{jsonScope{scope, version}, records}},
	}}}
	return json.NewEncoder(w).Encode(line)
}

// In OTLP JSON, 64-bit numbers are strings, identifiers are hexadecimal, and
// enumerations are numbers.
type (
	jsonLogs struct {
		ResourceLogs []jsonResourceLogs `json:"resourceLogs"`
	}
	jsonResourceLogs struct {
		Resource  jsonResource    `json:"resource"`
		ScopeLogs []jsonScopeLogs `json:"scopeLogs"`
	}
	jsonResource struct {
		Attributes []jsonAttribute `json:"attributes"`
	}
	jsonScopeLogs struct {
		Scope      jsonScope    `json:"scope"`
		LogRecords []jsonRecord `json:"logRecords"`
	}
	jsonScope struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	jsonRecord struct {
		Time           string          `json:"timeUnixNano"`
		Observed       string          `json:"observedTimeUnixNano"`
		SeverityNumber log.Severity    `json:"severityNumber"`
		SeverityText   string          `json:"severityText"`
		EventName      string          `json:"eventName"`
		Body           jsonValue       `json:"body"`
		Attributes     []jsonAttribute `json:"attributes"`
		TraceID        string          `json:"traceId,omitempty"`
	}
	jsonAttribute struct {
		Key   string    `json:"key"`
		Value jsonValue `json:"value"`
	}
	jsonValue struct {
		String *string    `json:"stringValue,omitempty"`
		Int    *string    `json:"intValue,omitempty"`
		Array  *jsonArray `json:"arrayValue,omitempty"`
	}
	jsonArray struct {
		Values []jsonValue `json:"values"`
	}
)

// jsonRecordOf returns the record of [recordOf] in JSON form.
func jsonRecordOf(e *eventlog.Record) jsonRecord {
	r := recordOf(e)
	return jsonRecord{
		Time: strconv.FormatInt(r.Timestamp().UnixNano(), 10), Observed: strconv.FormatInt(r.ObservedTimestamp().UnixNano(), 10),
		SeverityNumber: r.Severity(), SeverityText: r.SeverityText(), EventName: r.EventName(),
		Body: jsonText(e.Type), Attributes: jsonAttributes(attributes(e)), TraceID: e.Trace,
	}
}

func jsonAttributes(kvs []attribute.KeyValue) []jsonAttribute {
	out := make([]jsonAttribute, len(kvs))
	for i, kv := range kvs {
		out[i] = jsonAttribute{string(kv.Key), jsonValueOf(kv.Value)}
	}
	return out
}

// jsonValueOf converts a value of one of the types in [attributes].
func jsonValueOf(v attribute.Value) jsonValue {
	switch v.Type() {
	case attribute.INT64:
		n := strconv.FormatInt(v.AsInt64(), 10)
		return jsonValue{Int: &n}
	case attribute.STRINGSLICE:
		all := &jsonArray{}
		for _, s := range v.AsStringSlice() {
			all.Values = append(all.Values, jsonText(s))
		}
		return jsonValue{Array: all}
	default:
		return jsonText(v.AsString())
	}
}

func jsonText(s string) jsonValue { return jsonValue{String: &s} }
