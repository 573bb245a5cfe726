package all

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/providerset"
)

// The catalog lists the providers that can be opened, and no others.
func TestOpeners(t *testing.T) {
	var listed []string
	for _, p := range catalog.Builtin() {
		listed = append(listed, p.Name)
	}
	slices.Sort(listed)
	if have := slices.Sorted(maps.Keys(openers)); !slices.Equal(have, listed) {
		t.Errorf("there are drivers for %v, and catalog.Builtin lists %v", have, listed)
	}
}

// documented is how a provider's page names an option.
var documented = regexp.MustCompile("[Pp]rovider option `([A-Za-z]+)`")

// Each option that a provider's page names exists.
func TestDocumentedOptions(t *testing.T) {
	pages, err := filepath.Glob("../../docs/reference/providers/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		for _, m := range documented.FindAllStringSubmatch(string(text), -1) {
			found++
			options, _ := json.Marshal(map[string]any{m[1]: nil})
			p, err := openers[name](providerset.Host{Dir: t.TempDir(), Options: options})
			if err == nil {
				p.Close()
			}
			if err != nil && strings.Contains(err.Error(), "unknown field") {
				t.Errorf("%s: option %q: %v", name, m[1], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("the pages name %d options", found)
	}
}
