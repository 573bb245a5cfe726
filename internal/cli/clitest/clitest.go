// Package clitest has what the tests of the command line share.
package clitest

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Evil does something to a terminal that shows it: it sets the title, colours and
// turns around what follows, and has characters without a width. Its last character
// is past the first 65536.
const Evil = "x\x1b]0;x\x07\r\u009b31m\u202e\u2066\u200b\u00ad\u2028\ufeff\x7f\x00\b\u3164\U000e0041"

// Harm returns the first character of a text that a terminal must not get.
func Harm(text string) string {
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\n' || r == '\t':
		case r == utf8.RuneError && size == 1:
			return fmt.Sprintf("byte %#x", text[i])
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point):
			return fmt.Sprintf("%U", r)
		}
	}
	return ""
}

// Lookup returns a function that looks up variables in env, as os.LookupEnv does in
// the environment.
func Lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}
