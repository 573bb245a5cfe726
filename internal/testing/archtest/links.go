package archtest

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#* *$`)
	mdFence   = regexp.MustCompile("(?ms)^```.*?^```")
	mdCode    = regexp.MustCompile("`[^`\n]*`")
)

// checkLinks checks every relative link of a Markdown file and its heading.
// exists reports whether a path exists in the tree; read returns a file's text.
func checkLinks(name, text string, exists func(string) bool, read func(string) string) (violations []string) {
	prose := mdCode.ReplaceAllString(mdFence.ReplaceAllString(text, ""), "")
	for _, m := range mdLink.FindAllStringSubmatch(prose, -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, ":") { // a URL
			continue
		}
		file := name
		if target != "" {
			file = path.Join(path.Dir(name), target)
		}
		switch {
		case strings.HasPrefix(file, "../"), strings.HasPrefix(target, "/"):
			violations = append(violations, fmt.Sprintf("%s: %s points outside the repository", name, m[1]))
		case !exists(file):
			violations = append(violations, fmt.Sprintf("%s: %s does not exist", name, m[1]))
		case anchor != "" && !anchors(read(file))[anchor]:
			violations = append(violations, fmt.Sprintf("%s: %s names no heading there", name, m[1]))
		}
	}
	return violations
}

// anchors returns the anchors of a Markdown file's headings, formed as on the
// usual code hosts.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
		found[slug(m[1])] = true
	}
	return found
}

func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
}
