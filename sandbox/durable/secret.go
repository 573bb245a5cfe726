package durable

import "time"

// StoredSecret describes a stored secret, without its value.
type StoredSecret struct {
	Name        string            `json:"name"`
	Version     int64             `json:"version" doc:"raised by every new value"`
	Description string            `json:"description,omitempty"`
	Source      string            `json:"source,omitempty" doc:"where the daemon reads the value from: env:NAME or file:/PATH"`
	Hosts       []string          `json:"hosts,omitempty" doc:"hosts that it may be sent to"`
	Labels      map[string]string `json:"labels,omitempty"`
	AllowEnv    bool              `json:"allowEnv,omitempty" doc:"sandboxes may get the value itself"`
	Created     time.Time         `json:"created"`
	Updated     time.Time         `json:"updated"`
	Uses        int               `json:"uses,omitempty" doc:"number of sandboxes that use it; only in a list"`
}

// NewSecret asks for a secret to be stored. Either Value or Text is the value,
// or Source says where the daemon reads it from.
type NewSecret struct {
	Name        string            `json:"name" maxLength:"63"`
	Value       []byte            `json:"valueBase64,omitempty" doc:"the value, at most 64 KiB"`
	Text        string            `json:"value,omitempty" maxLength:"65536" doc:"the value, if it is UTF-8"`
	Source      string            `json:"source,omitempty" maxLength:"4096" doc:"where the daemon reads the value from instead: env:NAME or file:/PATH; only for the owner of the machine"`
	Description string            `json:"description,omitempty" maxLength:"1000"`
	Hosts       []string          `json:"hosts,omitempty" maxItems:"256" doc:"hosts that it may be sent to, such as api.example.com; if left out, only stored profiles may send it, to the hosts in their rules"`
	AllowEnv    bool              `json:"allowEnv,omitempty" doc:"sandboxes may get the value itself"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// SecretValue is a new value of a secret, as Value or as Text.
type SecretValue struct {
	Value  []byte            `json:"valueBase64,omitempty" doc:"the value, at most 64 KiB"`
	Text   string            `json:"value,omitempty" maxLength:"65536" doc:"the value, if it is UTF-8"`
	Labels map[string]string `json:"labels,omitempty" doc:"new labels; if left out, the labels do not change"`
}

// Bytes returns the value. It may share memory with Value.
func (n *NewSecret) Bytes() []byte { return valueOr(n.Value, n.Text) }

// Bytes returns the value. It may share memory with Value.
func (v *SecretValue) Bytes() []byte { return valueOr(v.Value, v.Text) }

func valueOr(value []byte, text string) []byte {
	if len(value) > 0 {
		return value
	}
	return []byte(text)
}
