package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// each hands every row of a query to use, as it comes from the driver:
// database/sql would look at each number by reflection and lock for each row,
// which takes a third of the time of a listing of thousands. args are strings
// and numbers of 64 bits. A row is valid until use returns; its strings remain.
func (tx *Tx) each(ctx context.Context, query string, args []any, use func(scanner) error) error {
	tx.s.trace(ctx, query)
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return tx.conn.Raw(func(conn any) (err error) {
		queryer, ok := conn.(driver.QueryerContext)
		if !ok {
			return errLacks
		}
		rows, err := queryer.QueryContext(ctx, query, named)
		if err != nil {
			return err
		}
		defer func() {
			if closed := rows.Close(); err == nil {
				err = closed
			}
		}()
		return scanAll(rows, use)
	})
}

func scanAll(rows driver.Rows, use func(scanner) error) error {
	row := make(rawRow, len(rows.Columns()))
	var scan scanner = row // once: to make it so is an allocation
	for {
		err := rows.Next(row)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = use(scan)
		}
		if err != nil {
			return err
		}
	}
}

// rawRow is a row as it comes from a driver.
type rawRow []driver.Value

// Scan implements scanner for the types that the drivers return.
func (r rawRow) Scan(dest ...any) error {
	if len(dest) != len(r) {
		return fmt.Errorf("%d columns for %d values", len(r), len(dest))
	}
	for i, d := range dest {
		ok := false
		switch d := d.(type) {
		case *string:
			*d, ok = r[i].(string)
		case *int64:
			*d, ok = r[i].(int64)
		case *float64:
			*d, ok = r[i].(float64)
		}
		if !ok {
			return fmt.Errorf("column %d is a %T and wanted as %T", i, r[i], d)
		}
	}
	return nil
}
