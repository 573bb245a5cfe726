package daemon_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	// selectorRE finds the metrics of an expression, with what follows in braces.
	selectorRE = regexp.MustCompile(`\b([a-z]+(?:_[a-z]+)+)\{([^}]*)\}`)
	labelRE    = regexp.MustCompile(`([a-z]+)(?:=~|!~|!=|=)"`)
	groupRE    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legendRE   = regexp.MustCompile(`\{\{(\w+)\}\}`)
	// shapeRE matches the remainder of an expression that uses metrics as PromQL does.
	shapeRE = regexp.MustCompile(`^(histogram_quantile\(0\.\d+, )?((min|max|sum)( by \([a-z, ]+\))? ?\()?((rate|increase)\()?METRIC(\[(\$__rate_interval|1h)\])?\)*$`)
)

// TestDashboard: every metric and label in build/deploy/grafana exists in a daemon,
// and every panel has a valid expression.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("../../build/deploy/grafana/atoll.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "true")
	_, metrics := fetch(t, d, "/metrics", "", "")
	panels := 0
	for _, p := range board.Panels {
		if p.Type == "row" {
			continue
		}
		panels++
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			checkExpression(t, metrics, target.Expr, target.LegendFormat)
		}
	}
	if panels < 10 {
		t.Errorf("only %d panels were found", panels)
	}
}

// checkExpression checks one expression against what a daemon shows.
func checkExpression(t *testing.T, metrics, expr, legend string) {
	t.Helper()
	found := selectorRE.FindAllStringSubmatch(expr, -1)
	if shape := selectorRE.ReplaceAllString(expr, "METRIC"); len(found) != 1 || !shapeRE.MatchString(shape) ||
		strings.Count(shape, "(") != strings.Count(shape, ")") {
		t.Errorf("%s: not an expression of one metric", expr)
		return
	}
	name := found[0][1]
	line := regexp.MustCompile(`(?m)^` + name + `(\{.*\})? \S+$`).FindString(metrics)
	if line == "" {
		t.Errorf("%s: the daemon has no metric %s", expr, name)
		return
	}
	var labels []string
	for _, m := range labelRE.FindAllStringSubmatch(found[0][2], -1) {
		labels = append(labels, m[1])
	}
	for _, m := range groupRE.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.Split(m[1], ", ")...)
	}
	for _, m := range legendRE.FindAllStringSubmatch(legend, -1) {
		labels = append(labels, m[1])
	}
	for _, label := range labels {
		if label != "instance" && !strings.Contains(line, label+`="`) { // Prometheus itself adds that one
			t.Errorf("%s: %s has no label %s: %s", expr, name, label, line)
		}
	}
}
