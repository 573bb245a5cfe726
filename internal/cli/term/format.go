package term

import (
	"reflect"
	"strings"
	"text/template"
)

// FormatHelp explains --format.
const FormatHelp = "format each with this Go template, such as '{{.Name}} {{.State}}'; {{json .}} shows all fields"

// Row compiles a template for the rows of a list, which have the type of
// sample, so that mistakes are found before any request. \t and \n may be
// written as escapes, as in docker.
func Row(text string, sample any) (func(any) (string, error), error) {
	if text == "json" { // as in docker
		text = "{{json .}}"
	}
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	t, err := template.New("format").Option("missingkey=zero").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			var b strings.Builder
			err := WriteJSON(&b, v, "")
			return strings.TrimSuffix(b.String(), "\n"), err
		},
		"join": strings.Join, "upper": strings.ToUpper, "lower": strings.ToLower,
	}).Parse(text)
	if err != nil {
		return nil, badTemplate(err)
	}
	render := func(v any) (string, error) {
		var b strings.Builder
		if err := t.Execute(&b, v); err != nil {
			return "", badTemplate(err)
		}
		return b.String(), nil
	}
	if _, err := render(reflect.Zero(reflect.TypeOf(sample)).Interface()); err != nil && !strings.Contains(err.Error(), "nil pointer evaluating") {
		return nil, err // what the sample lacks, the value may have
	}
	return render, nil
}

// badTemplate describes an error in a template without the names of our types.
func badTemplate(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: format:")
	if i := strings.Index(text, "can't evaluate field "); i >= 0 {
		field, _, _ := strings.Cut(text[i+len("can't evaluate field "):], " ")
		text = "there is no field " + field
	}
	e := BadFlag("format", "%s", text)
	e.Hint = "see what there is with: --format '{{json .}}'"
	return e
}

// Formatted writes rows by a template.
func Formatted[T any](a *Term, text string, all []T) error {
	var sample T
	render, err := Row(text, sample)
	if err != nil {
		return err
	}
	for _, v := range all {
		line, err := render(v)
		if err != nil {
			return err
		}
		if err := a.Println(Painted(Visible(line))); err != nil {
			return err
		}
	}
	return nil
}
