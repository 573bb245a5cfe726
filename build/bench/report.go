package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// figure is a sample with its unit and the number of decimals to show.
type figure struct {
	sample   sample
	unit     string
	decimals int
}

func inMilliseconds(s sample) figure { return figure{s, "ms", 1} }
func inMegabytes(s sample) figure    { return figure{s, "MB", 1} }
func perSecond(s sample) figure      { return figure{s, "per s", 1} }
func megabytesPerSecond(s sample) figure {
	return figure{s, "MB/s", 0}
}

// String returns the median and the range.
func (f figure) String() string {
	if len(f.sample) == 0 {
		return "–"
	}
	num := func(v float64) string { return fmt.Sprintf("%.*f", f.decimals, v) }
	s := num(f.sample.median()) + " " + f.unit
	if len(f.sample) > 1 {
		low, high := math.Inf(1), math.Inf(-1)
		for _, v := range f.sample {
			low, high = min(low, v), max(high, v)
		}
		s += " (" + num(low) + "–" + num(high) + ")"
	}
	return s
}

// row compares one property.
type row struct {
	what    string
	atoll   figure
	peer    string // the alternative; empty: none
	theirs  figure
	targets []target
}

// target is a goal for a row.
type target struct {
	text     string
	relative bool // relative to the peer
	met      func(row) bool
}

// ratio returns Atoll's value divided by the peer's.
func (r row) ratio() float64 { return r.atoll.sample.median() / r.theirs.sample.median() }

func atMostOneIn(n float64) target {
	return target{fmt.Sprintf("≤ 1/%g of it", n), true, func(r row) bool { return r.ratio() <= 1/n }}
}

func atMost(v float64, unit string) target {
	return target{fmt.Sprintf("≤ %g %s", v, unit), false, func(r row) bool { return r.atoll.sample.median() <= v }}
}

// addsAtMost is about the difference to the peer.
func addsAtMost(v float64, unit string) target {
	return target{fmt.Sprintf("≤ %g %s more", v, unit), true, func(r row) bool { return r.atoll.sample.median()-r.theirs.sample.median() <= v }}
}

func atLeast(v float64, unit string) target {
	return target{fmt.Sprintf("≥ %g %s", v, unit), false, func(r row) bool { return r.atoll.sample.median() >= v }}
}

// showRatio formats a ratio; a fifth is "1/5.0".
func showRatio(ratio float64) string {
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return "–"
	case ratio < 1:
		return fmt.Sprintf("1/%.1f", 1/ratio)
	}
	return fmt.Sprintf("%.1f×", ratio)
}

// cells returns the columns of the table.
func (r row) cells() []string {
	texts := []string{"–"}
	if r.targets != nil {
		texts = nil
	}
	for _, t := range r.targets {
		texts = append(texts, t.text)
	}
	peer, ratio := "–", "–"
	if r.peer != "" {
		peer, ratio = r.peer+": "+r.theirs.String(), showRatio(r.ratio())
	}
	return []string{r.what, r.atoll.String(), peer, ratio, strings.Join(texts, " and "), r.verdict()}
}

// verdict reports whether all targets are met.
func (r row) verdict() string {
	verdict := "–"
	for _, t := range r.targets {
		switch {
		case t.relative && r.peer == "":
			return "not compared"
		case !t.met(r):
			return "no"
		}
		verdict = "yes"
	}
	return verdict
}

// table formats rows as Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| what | Atoll | compared with | ratio | target | met |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		b.WriteString("| " + strings.Join(r.cells(), " | ") + " |\n")
	}
	return b.String()
}

// intro is the beginning of the document.
const intro = `# Benchmarks

` + "`make bench` writes this file and the samples behind it, `build/bench/results/DATE.json`." + ` It measures Atoll and what it is compared with in turns, in one run
on one machine. Ratios travel between machines, milliseconds do not.

`

// write writes the document and, in the directory results, the file with the
// samples.
func write(doc, results string, at time.Time, heading string, rows []row) error {
	if err := os.WriteFile(doc, []byte(intro+heading+"\n"+table(rows)), 0o644); err != nil {
		return err
	}
	raw, err := samples(rows)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(results, at.UTC().Format("2006-01-02T1504")+".json"), raw, 0o644)
}

// samples returns all measurements of the rows as JSON.
func samples(rows []row) ([]byte, error) {
	type measured struct {
		What   string    `json:"what"`
		Unit   string    `json:"unit"`
		Atoll  []float64 `json:"atoll"`
		Peer   string    `json:"peer,omitempty"`
		Theirs []float64 `json:"theirs,omitempty"`
	}
	out := make([]measured, len(rows))
	for i, r := range rows {
		out[i] = measured{r.what, r.atoll.unit, r.atoll.sample, r.peer, r.theirs.sample}
	}
	return json.MarshalIndent(out, "", "  ")
}
