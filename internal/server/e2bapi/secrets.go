package e2bapi

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// secretAPI serves secrets, never their values.
type secretAPI struct{ secrets Secrets }

// secretInfo is a secret as clients see it.
type secretInfo struct {
	SecretID       string            `json:"secretID"`
	Name           string            `json:"name"`
	CurrentVersion int64             `json:"currentVersion"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
}

// secretPrefix is the prefix of secret ids. No name has it.
const secretPrefix = "sec_"

// secretHosts is the metadata key of a comma-separated list of hosts that may
// receive a secret. It is an extension of E2B's API.
const secretHosts = "atoll.hosts"

func toSecret(s durable.StoredSecret) secretInfo {
	out := secretInfo{
		SecretID: secretPrefix + s.Name, Name: s.Name, CurrentVersion: s.Version, Metadata: map[string]string{},
		CreatedAt: stamp(s.Created), UpdatedAt: stamp(s.Updated),
	}
	maps.Copy(out.Metadata, s.Labels)
	return out
}

// newSecret is the request for a secret or for a new value.
type newSecret struct {
	Name     string            `json:"name"`
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata"`
}

// Limits of the metadata of a secret.
const (
	maxSecretMetadata = 32
	maxSecretKey      = 128
	maxSecretEntry    = 1024
	maxSecretTotal    = 8192
)

func (n *newSecret) check() error {
	total := 0
	for k, v := range n.Metadata {
		if k == "" || len(k) > maxSecretKey || len(v) > maxSecretEntry {
			return invalid("metadata", "a key, or its value, is too long")
		}
		total += len(k) + len(v)
	}
	switch {
	case len(n.Metadata) > maxSecretMetadata || total > maxSecretTotal:
		return invalid("metadata", "is more than %d entries or %d bytes", maxSecretMetadata, maxSecretTotal)
	case n.Value == "":
		return invalid("value", "none given")
	}
	return nil
}

func (h *secretAPI) create(w http.ResponseWriter, r *http.Request) error {
	var req newSecret
	if err := read(r, &req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	name := strings.ToLower(req.Name)
	if strings.HasPrefix(name, secretPrefix) {
		return invalid("name", "begins with %q, as ids do", secretPrefix)
	}
	var hosts []string
	if text := req.Metadata[secretHosts]; text != "" {
		for host := range strings.SplitSeq(text, ",") {
			hosts = append(hosts, strings.TrimSpace(host))
		}
	}
	s, err := h.secrets.Create(r.Context(), durable.NewSecret{Name: name, Value: []byte(req.Value), Hosts: hosts, Labels: req.Metadata})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, toSecret(s))
	return nil
}

func (h *secretAPI) update(w http.ResponseWriter, r *http.Request) error {
	var req newSecret
	if err := read(r, &req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	old, err := h.find(r)
	if err != nil {
		return err
	}
	if req.Metadata != nil && req.Metadata[secretHosts] != old.Labels[secretHosts] {
		return invalid("metadata", "%s can only be set when the secret is created", secretHosts)
	}
	s, err := h.secrets.Rotate(r.Context(), old.Name, durable.SecretValue{Value: []byte(req.Value), Labels: req.Metadata})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, toSecret(s))
	return nil
}

// find returns the secret that a path names, by its id or its name.
func (h *secretAPI) find(r *http.Request) (durable.StoredSecret, error) {
	name := strings.TrimPrefix(strings.ToLower(r.PathValue("id")), secretPrefix)
	all, err := h.secrets.List(r.Context())
	if err != nil {
		return durable.StoredSecret{}, err
	}
	for _, s := range all {
		if strings.ToLower(s.Name) == name {
			return s, nil
		}
	}
	return durable.StoredSecret{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: clip(name), Message: "there is no such secret"}
}

func (h *secretAPI) get(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r)
	if err == nil {
		writeJSON(w, http.StatusOK, toSecret(s))
	}
	return err
}

func (h *secretAPI) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	limit, err := pageLimit(q.Get("limit"))
	if err != nil {
		return err
	}
	all, err := h.secrets.List(r.Context())
	if err != nil {
		return err
	}
	out := []secretInfo{}
	for _, s := range all {
		if s.Name <= q.Get("nextToken") {
			continue
		}
		if len(out) == limit {
			w.Header().Set("X-Next-Token", out[limit-1].Name)
			break
		}
		out = append(out, toSecret(s))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (h *secretAPI) remove(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r)
	if err == nil {
		err = h.secrets.Remove(r.Context(), s.Name, true)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// pageLimit parses the maximum number of entries per page.
func pageLimit(text string) (int, error) {
	if text == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("limit", "is not between 1 and %d", maxPage)
	}
	return n, nil
}
