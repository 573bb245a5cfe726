package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
)

// figure is a sample with its unit and the number of decimals worth showing.
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

// String shows the median, and what is between it and the extremes.
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

// row compares one thing.
type row struct {
	what    string
	atoll   figure
	peer    string // what it is compared with; empty for nothing
	theirs  figure
	targets []target
}

// target is what a row has to reach.
type target struct {
	text     string
	relative bool // to the peer
	met      func(row) bool
}

// ratio is ours by theirs.
func (r row) ratio() float64 { return r.atoll.sample.median() / r.theirs.sample.median() }

func atMostOneIn(n float64) target {
	return target{fmt.Sprintf("≤ 1/%g of it", n), true, func(r row) bool { return r.ratio() <= 1/n }}
}

func atMost(v float64, unit string) target {
	return target{fmt.Sprintf("≤ %g %s", v, unit), false, func(r row) bool { return r.atoll.sample.median() <= v }}
}

func atLeast(v float64, unit string) target {
	return target{fmt.Sprintf("≥ %g %s", v, unit), false, func(r row) bool { return r.atoll.sample.median() >= v }}
}

// showRatio writes a ratio as people say it: a fifth is "1/5.0".
func showRatio(ratio float64) string {
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return "–"
	case ratio < 1:
		return fmt.Sprintf("1/%.1f", 1/ratio)
	}
	return fmt.Sprintf("%.1f×", ratio)
}

// cells are the columns of the table.
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

// verdict tells whether all targets are met.
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

// table writes rows as Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| what | Atoll | compared with | ratio | target | met |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		b.WriteString("| " + strings.Join(r.cells(), " | ") + " |\n")
	}
	return b.String()
}

// The lines between which a document holds results.
const (
	resultsBegin = "<!-- written by make bench: begin -->\n"
	resultsEnd   = "<!-- written by make bench: end -->\n"
)

// insert returns the document with the results in their place.
func insert(doc []byte, results string) ([]byte, error) {
	before, after, found := bytes.Cut(doc, []byte(resultsBegin))
	_, after, ended := bytes.Cut(after, []byte(resultsEnd))
	if !found || !ended {
		return nil, fmt.Errorf("the document does not say where the results go (%q … %q)", resultsBegin, resultsEnd)
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(resultsBegin + "\n" + results + "\n" + resultsEnd)
	b.Write(after)
	return b.Bytes(), nil
}

// write puts the results into the file.
func write(file, results string) error {
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if doc, err = insert(doc, results); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, doc, 0o644)
}
