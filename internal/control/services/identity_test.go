package services_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/sandbox"
)

// identified is a network whose rule adds an identity token.
func identified(audience string) sandbox.Network {
	return sandbox.Network{Inline: &sandbox.Profile{Default: sandbox.Deny, Rules: []sandbox.Rule{{
		Action: sandbox.Allow, Hosts: []string{"api.example.com"},
		Inject: []sandbox.Injection{{Mode: sandbox.InjectParts, Name: "Authorization", Parts: []sandbox.InjectPart{{Text: "Bearer "}, {Audience: audience}}}},
	}}}}
}

// claimsOf reads the only token that the gateway got.
func claimsOf(t *testing.T, e profiles.Egress) (text string, claims jwt.MapClaims) {
	t.Helper()
	if len(e.Secrets) != 1 || e.Secrets[0].Name != sandbox.IdentityToken("sts.example.com") {
		t.Fatalf("the gateway has %+v", e.Secrets)
	}
	text, claims = string(e.Secrets[0].Value.Reveal()), jwt.MapClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(text, claims); err != nil {
		t.Fatal(err)
	}
	return text, claims
}

// The gateway gets tokens for each sandbox, whatever its name. Tokens reach
// nothing else and are never stored.
func TestAttackIdentityTokens(t *testing.T) {
	r := newRig(t, nil)
	network := identified("sts.example.com")
	_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "early", Network: network}}})
	wants(t, "without a place where the keys are published", err, sandbox.CodeUnsupported)
	r.issuer.Publish("https://api.box.test")

	mine, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "box", Network: network}}})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := r.Sandboxes.Creator.Create(r.rival, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
		Name: "box", Network: network, Labels: map[string]string{"tenant": "acme", "sandbox": string(mine.ID), "e2b.token.x": "sts.example.com"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Profiles.Egress(t.Context(), mine.ID)
	if err != nil {
		t.Fatal(err)
	}
	text, claims := claimsOf(t, e)
	if want := "spiffe://api.box.test/tenant/acme/sandbox/" + string(mine.ID); claims["sub"] != want {
		t.Errorf("it is of %v, want %s", claims["sub"], want)
	}
	e, err = r.Profiles.Egress(t.Context(), theirs.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, claims := claimsOf(t, e); claims["sub"] != "spiffe://api.box.test/tenant/rival/sandbox/"+string(theirs.ID) {
		t.Errorf("another tenant's is of %v", claims["sub"])
	}

	// A token goes to hosts with names only, and to none that a rule denies.
	for what, change := range map[string]func(*sandbox.Rule){
		"everywhere":        func(r *sandbox.Rule) { r.Hosts = []string{"*"} },
		"a whole network":   func(r *sandbox.Rule) { r.Hosts = []string{"192.0.2.0/24"} },
		"denied":            func(r *sandbox.Rule) { r.Action = sandbox.Deny },
		"two lines":         func(r *sandbox.Rule) { r.Inject[0].Parts[1].Audience = "a\nb" },
		"a token in a text": func(r *sandbox.Rule) { r.Inject[0].Parts[1].Text = "x" },
		"a long audience":   func(r *sandbox.Rule) { r.Inject[0].Parts[1].Audience = strings.Repeat("x", 257) },
	} {
		n := identified("sts.example.com")
		change(&n.Inline.Rules[0])
		_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "odd", Network: n}}})
		wants(t, what, err, sandbox.CodeInvalid)
	}

	shown, err := r.Sandboxes.Records.Get(r.owner, string(mine.ID))
	if err != nil {
		t.Fatal(err)
	}
	events, err := r.Events.Events(r.owner, sandbox.EventQuery{Page: 1000})
	if err != nil {
		t.Fatal(err)
	}
	said, err := json.Marshal([]any{shown, events})
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]string{"an answer": string(said), "the log": r.logged.String(), "the sandbox": r.env(t, "box")} {
		if strings.Contains(s, text) || strings.Contains(s, text[strings.LastIndex(text, "."):]) {
			t.Errorf("%s holds the token", what)
		}
	}
}

// The gateway gets new tokens before the old ones end, and no other sandbox is
// bothered.
func TestIdentityTokensAreRenewed(t *testing.T) {
	r := newRig(t, nil)
	r.issuer.Publish("https://api.box.test")
	b, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "box", Network: identified("sts.example.com")}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{Name: "plain", Network: sandbox.Network{Egress: []string{"api.example.com"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.gateway.heard = make(chan sandbox.ID)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { r.Profiles.WatchTokens(ctx, time.Millisecond) })
	defer work.Wait()
	defer stop()
	before := ""
	for range 3 {
		for range 2 {
			if id := <-r.gateway.heard; id != b.ID {
				t.Errorf("the gateway was told of %s, which sends no tokens", id)
			}
		}
		text, _ := claimsOf(t, r.gateway.last(t, b.ID))
		if text == before {
			t.Error("the gateway got the same token again")
		}
		before = text
	}
}
