//go:build gigabyte

package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// gigabyteNeeds is the memory for eleven sandboxes that share a gigabyte, in
// bytes: twice the measured use.
const gigabyteNeeds = 4 << 30

// TestGigabyte is the script timetravel.txtar with a gigabyte of memory and ten
// forks. `make gigabyte` runs it.
func TestGigabyte(t *testing.T) {
	if have := availableMemory(t); have < gigabyteNeeds {
		t.Fatalf("this needs %d MiB of memory, and %d MiB are available (MemAvailable of /proc/meminfo)", gigabyteNeeds>>20, have>>20)
	}
	params := scriptParams(built.atoll)
	params.Dir = "../../test/script-heavy"
	testscript.RunT(quiet{t}, params)
}

// availableMemory returns the memory that can be used without swapping, in
// bytes.
func availableMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^MemAvailable: +(\d+) kB$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("/proc/meminfo has no MemAvailable")
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
