package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

const document = "../../../docs/openapi.json"

// The committed document is the same as the one that the daemon serves.
func TestOpenAPIIsCurrent(t *testing.T) {
	text, err := New(Services{}, Options{}).OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	pretty.WriteByte('\n')
	if *update {
		if err := os.WriteFile(document, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, pretty.Bytes()) {
		t.Error("docs/openapi.json is not current; run: go test ./internal/server/api -run OpenAPI -update")
	}
}

// Every operation has a unique name and a summary, every reference resolves,
// and every path parameter is described.
func TestOpenAPIIsSound(t *testing.T) {
	text, err := New(Services{}, Options{}).OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]operationDoc
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || len(doc.Paths) < 20 {
		t.Fatalf("version %s, %d paths", doc.OpenAPI, len(doc.Paths))
	}
	var ids []string
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if op.OperationID == "" || op.Summary == "" || slices.Contains(ids, op.OperationID) {
				t.Errorf("%s %s: %+v", method, path, op)
			}
			ids = append(ids, op.OperationID)
			for _, name := range pathParams(path) {
				if !slices.ContainsFunc(op.Parameters, func(p paramDoc) bool { return p.Name == name && p.In == "path" }) {
					t.Errorf("%s %s: {%s} is not described", method, path, name)
				}
			}
		}
	}
	for _, part := range strings.Split(string(text), `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, ok := doc.Components.Schemas[name]; !ok {
			t.Errorf("nothing is called %s", name)
		}
	}
}

type operationDoc struct {
	OperationID, Summary string
	Parameters           []paramDoc
}

type paramDoc struct{ Name, In string }
