package ops

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
)

// Each constant of type Code has one row, and each row a constant.
func TestFaultTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[Code]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Code" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			constants[Code(value)] = true
		}
		return true
	})
	if len(constants) < 20 {
		t.Fatalf("found %d constants", len(constants))
	}
	seen := map[Code]bool{}
	for _, row := range Codes() {
		if seen[row.Code] {
			t.Errorf("%s stands twice", row.Code)
		}
		seen[row.Code] = true
		if !constants[row.Code] {
			t.Errorf("%s has a row and no constant", row.Code)
		}
		if row.Status < 400 || row.Status > 599 || row.Exit < 1 || row.Meaning == "" {
			t.Errorf("%s: the row %+v is not that of a fault", row.Code, row)
		}
	}
	for c := range constants {
		if !seen[c] {
			t.Errorf("%s has no row", c)
		}
		if got := c.Info().Code; got != c {
			t.Errorf("%s.Info() is that of %s", c, got)
		}
	}
	if got := Code("NONSENSE").Info().Code; got != Internal {
		t.Errorf("a stray code reads as %s, want %s", got, Internal)
	}
}

func TestFault(t *testing.T) {
	f := Faultf(Busy, "queue of %d is full", 3)
	g := f.With("max", 3)
	if f.Details != nil || g.Details["max"] != 3 || !g.Retryable {
		t.Errorf("got %+v and %+v", f, g)
	}
	b, err := json.Marshal(g)
	if want := `{"code":"BUSY","message":"queue of 3 is full","retryable":true,"details":{"max":3}}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v; want %s", b, err, want)
	}
	var as *Fault
	if err := error(g); !errors.As(err, &as) || as.Error() != "BUSY: queue of 3 is full" {
		t.Errorf("got %v", as)
	}
}
