package store

import (
	"errors"
	"strings"
)

// briefColumns are what listings read. The driver of SQLite takes locks for
// each column of each row, three for a text, which took half of the time that
// reading rows takes: texts come as one. All but the reason, which is last, are
// made of what cannot contain the separator, be it as names or as JSON.
const (
	separator    = "\x1f"
	briefColumns = "concat_ws('" + separator + "', id, name, state, provider, node, labels_json, reason), image" +
		", cpus, memory, disk, pids, created, updated, expires"
)

// briefScan returns a scanner of rows of a tenant with the columns named so.
func briefScan(tenant string) func(scanner, *Summary) error {
	var texts string
	r := &sandboxRow{tenant: tenant}
	r.dest = []any{&texts, &r.image, &r.cpus, &r.memory, &r.disk, &r.pids, &r.created, &r.updated, &r.expires}
	return func(row scanner, b *Summary) error {
		if err := row.Scan(r.dest...); err != nil {
			return err
		}
		if !r.cut(texts) {
			return errors.New("a sandbox's row has too few texts")
		}
		*b = r.summary()
		if r.labels != "{}" {
			b.LabelsJSON = r.labels
		}
		return nil
	}
}

// cut takes the first of briefColumns apart.
func (r *sandboxRow) cut(texts string) bool {
	for _, dest := range [...]*string{&r.id, &r.name, &r.state, &r.provider, &r.node, &r.labels} {
		end := strings.IndexByte(texts, separator[0])
		if end < 0 {
			return false
		}
		*dest, texts = texts[:end], texts[end+1:]
	}
	r.reason = texts
	return true
}
