package services_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestSecretLabels(t *testing.T) {
	r := newRig(t, nil)
	labels := func(want map[string]string) {
		t.Helper()
		all, err := r.Secrets.List(r.owner)
		if err != nil || len(all) != 1 || !maps.Equal(all[0].Labels, want) {
			t.Errorf("the secrets are %+v (%v), want one with the labels %v", all, err, want)
		}
	}
	value := []byte(canary)
	if _, err := r.Secrets.Create(r.owner, durable.NewSecret{Name: "github", Value: value, Labels: map[string]string{"team": "web"}}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(value), "canary") {
		t.Error("the value that was passed to Create is not cleared")
	}
	labels(map[string]string{"team": "web"})
	rotate := func(v durable.SecretValue) error { _, err := r.Secrets.Rotate(r.owner, "github", v); return err }
	wants(t, "a value as text", rotate(durable.SecretValue{Text: "the-second-value"}), "")
	labels(map[string]string{"team": "web"})
	wants(t, "other labels", rotate(durable.SecretValue{Text: "the-third-value", Labels: map[string]string{"team": "api"}}), "")
	labels(map[string]string{"team": "api"})
	wants(t, "a label without a name", rotate(durable.SecretValue{Text: "the-fourth-value", Labels: map[string]string{"": "x"}}), sandbox.CodeInvalid)
	labels(map[string]string{"team": "api"})
	all, err := r.Secrets.List(r.owner)
	if err != nil || all[0].Version != 3 {
		t.Errorf("after a refused rotation: %+v, %v", all, err)
	}
	_, err = r.Secrets.Create(r.owner, durable.NewSecret{Name: "big", Text: "a value", Labels: map[string]string{"k": strings.Repeat("x", 20<<10)}})
	wants(t, "labels that are too large", err, sandbox.CodeInvalid)
}
