// Command count prints how many tests were skipped and for what, in one line:
//
//	12 skipped: postgresql (8), erofs-utils (2), root (2)
//
// It reads the output of `go test -json` from the file that GOTESTSUM_JSONFILE
// names. A test that ran a second time counts once.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/need"
)

func main() {
	f, err := os.Open(os.Getenv("GOTESTSUM_JSONFILE"))
	if err == nil {
		defer f.Close()
		var line string
		if line, err = count(f); err == nil {
			_, _ = fmt.Fprintln(os.Stdout, line)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "counting the skipped tests:", err)
	os.Exit(1)
}

type test struct{ Package, Test string }

type event struct {
	test
	Action, Output string
}

// count returns the line for the events of go test. A test whose subtests were
// skipped is no skipped test.
func count(r io.Reader) (string, error) {
	said, skipped := map[test]*strings.Builder{}, map[test]bool{}
	for dec := json.NewDecoder(bufio.NewReader(r)); ; {
		var e event
		if err := dec.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return "", err
		}
		switch {
		case e.Test == "":
		case e.Action == "run":
			said[e.test] = new(strings.Builder)
			delete(skipped, e.test)
		case e.Action == "output" && said[e.test] != nil:
			said[e.test].WriteString(e.Output)
		case e.Action == "skip":
			skipped[e.test] = true
		case e.Action == "pass":
			delete(said, e.test)
		}
	}
	reasons := map[string]int{}
	for t := range skipped {
		reasons[reason(said[t])]++
	}
	if len(reasons) == 0 {
		return "0 skipped", nil
	}
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%d)", name, reasons[name])
	}
	return fmt.Sprintf("%d skipped: %s", len(skipped), strings.Join(names, ", ")), nil
}

// reason returns what the test needs.
func reason(said *strings.Builder) string {
	if said != nil {
		if all := need.Form.FindAllStringSubmatch(said.String(), -1); len(all) > 0 {
			return strings.TrimSpace(all[len(all)-1][1])
		}
	}
	return "no reason given"
}
