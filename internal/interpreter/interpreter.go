// Package interpreter holds the programs that make a sandbox one of E2B's code
// interpreter: a server for the port that its SDKs know, and the kernels in
// which code keeps its variables from one call to the next.
//
// They need nothing but python3's standard library; JavaScript needs node and
// shell scripts bash. Charts come when matplotlib is there, TypeScript, R and Java
// when the package typescript, Rscript and a JDK are.
package interpreter

import "embed"

// Port is where clients expect the server.
const Port = 49999

// Dir is where the programs belong in a sandbox.
const Dir = "/var/lib/atoll/interpreter"

// Ready is the line that the server prints when it listens.
const Ready = "ready"

//go:embed *.py *.js *.sh *.R *.java
var files embed.FS

// Files returns the programs by their names in Dir.
func Files() map[string][]byte {
	out := map[string][]byte{}
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // it is part of the program
	}
	for _, e := range entries {
		out[e.Name()], _ = files.ReadFile(e.Name()) // just listed
	}
	return out
}

// Command starts the server.
func Command() []string { return []string{"python3", "-I", Dir + "/server.py"} }
