package ops

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var nothing = ExecutorFunc(func(context.Context, Call) (Outcome, error) { return Success(&Result{}), nil })

func bound(name string, aliases ...OpName) Bound {
	return Bound{Op: Op{Name: OpName(name), Aliases: aliases, Provider: "p", Summary: "s"}, Executor: nothing}
}

func TestRegistry(t *testing.T) {
	r, err := New(bound("b.two", "two"), bound("a.one"), Bound{Op: ToolsList(), Executor: nothing},
		Bound{Op: BoxExec([]string{"status"}), Executor: nothing}, Bound{Op: DMSend(), Executor: nothing})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range r.All() {
		names = append(names, string(e.Name))
	}
	if want := []string{"a.one", "b.two", "box.exec", "dm.send", "tools.list"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if e, ok := r.Lookup("two"); !ok || e.Name != "b.two" {
		t.Errorf("alias two: got %v, %t", e, ok)
	}
	for _, name := range []OpName{"", "Two", "two ", "b", "tw\u043e"} {
		if e, ok := r.Lookup(name); ok {
			t.Errorf("%q is found as %s", name, e.Name)
		}
	}
	live := NewLive(r)
	other, _ := New()
	if live.Swap(other); live.Current() != other {
		t.Error("Swap did not put the other registry in force")
	}
}

func TestRegistryRefuses(t *testing.T) {
	op := func(change func(*Op)) Bound {
		b := bound("x")
		change(&b.Op)
		return b
	}
	param := func(p Param) Bound {
		p.Name = "a"
		return op(func(o *Op) { o.Params = Params{p} })
	}
	for name, c := range map[string]struct {
		bound []Bound
		want  string
	}{
		"name twice":         {[]Bound{bound("x"), bound("x")}, "the name x is taken by op x (provider p)"},
		"alias of a name":    {[]Bound{bound("x"), bound("y", "x")}, "the name x is taken"},
		"name of an alias":   {[]Bound{bound("y", "x"), bound("x")}, "the name x is taken by op y"},
		"alias twice":        {[]Bound{bound("x", "z"), bound("y", "z")}, "the name z is taken"},
		"alias of itself":    {[]Bound{bound("x", "x")}, "the name x is taken"},
		"no executor":        {[]Bound{{Op: bound("x").Op}}, "nothing runs it"},
		"name form":          {[]Bound{bound("a b")}, "want a letter"},
		"long name":          {[]Bound{bound(strings.Repeat("a", 129))}, "at most 128"},
		"no provider":        {[]Bound{op(func(o *Op) { o.Provider = "" })}, "no provider"},
		"no summary":         {[]Bound{op(func(o *Op) { o.Summary = "" })}, "summary"},
		"two-line summary":   {[]Bound{op(func(o *Op) { o.Summary = "a\nb" })}, "summary"},
		"parameter twice":    {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: Bool}, {Name: "a", Type: Bool}} })}, "stands twice"},
		"parameter name":     {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a b", Type: Bool}} })}, "parameter name"},
		"parameter type":     {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: "paths"}} })}, "unknown type"},
		"enum value twice":   {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: Enum, Values: []string{"x", "x"}}} })}, "stands twice"},
		"enum of nothing":    {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: Enum}} })}, "needs values"},
		"int beyond":         {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: Int, Max: MaxInt + 1}} })}, "±"},
		"concurrency":        {[]Bound{op(func(o *Op) { o.Concurrency = -1 })}, "want neither negative"},
		"rate in no time":    {[]Bound{op(func(o *Op) { o.Rate = Rate{Count: 1} })}, "at least a second"},
		"path without root":  {[]Bound{param(Param{Type: Path, Kind: KindDir})}, "needs a root"},
		"relative root":      {[]Bound{param(Param{Type: Path, Kind: KindDir, Root: "srv"})}, "clean absolute path"},
		"unclean root":       {[]Bound{param(Param{Type: Path, Kind: KindDir, Root: "/srv/"})}, "clean absolute path"},
		"root with NUL":      {[]Bound{param(Param{Type: Path, Kind: KindDir, Root: "/s\x00"})}, "clean absolute path"},
		"path without kind":  {[]Bound{param(Param{Type: Path, Root: "/srv"})}, "needs a kind"},
		"path of a pipe":     {[]Bound{param(Param{Type: Path, Root: "/srv", Kind: "pipe"})}, "file or dir"},
		"path descriptor":    {[]Bound{param(Param{Type: Path, Root: "/srv", Kind: KindFile, As: AsDescriptor})}, "stdin or argument"},
		"secret without any": {[]Bound{param(Param{Type: Secret})}, "credentials"},
		"secret that is one": {[]Bound{param(Param{Type: Secret, Values: []string{"hunter2"}})}, "want file:NAME"},
		"secret outside":     {[]Bound{param(Param{Type: Secret, Values: []string{"file:../x"}})}, "want file:NAME"},
		"secret twice":       {[]Bound{param(Param{Type: Secret, Values: []string{"env:A", "env:A"}})}, "stands twice"},
		"secret as a word":   {[]Bound{param(Param{Type: Secret, Values: []string{"env:A"}, As: AsArgument})}, "stdin or descriptor"},
		"enum as stdin":      {[]Bound{param(Param{Type: Enum, Values: []string{"a"}, As: AsStdin})}, "want no as"},
		"text as a word":     {[]Bound{param(Param{Type: Text, Max: 9, As: AsArgument})}, "want stdin"},
		"duration unit":      {[]Bound{param(Param{Type: Duration, Max: int64(time.Hour), Unit: "h"})}, "unknown unit"},
		"duration below 0":   {[]Bound{param(Param{Type: Duration, Min: -1, Max: int64(time.Hour)})}, "between 0s and 2400h"},
		"duration reversed":  {[]Bound{param(Param{Type: Duration, Min: int64(time.Hour), Max: int64(time.Second)})}, "min first"},
		"duration too long":  {[]Bound{param(Param{Type: Duration, Max: int64(2401 * time.Hour)})}, "between 0s and 2400h"},
		"duration fraction":  {[]Bound{param(Param{Type: Duration, Min: int64(time.Millisecond), Max: int64(time.Hour)})}, "whole numbers of s"},
		"text without bound": {[]Bound{op(func(o *Op) { o.Params = Params{{Name: "a", Type: Text}} })}, "needs max"},
	} {
		if r, err := New(c.bound...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v; want %q", name, r, err, c.want)
		}
	}
}

func TestUnknownOp(t *testing.T) {
	r, err := New(bound("disk.usage"), bound("disk.usages"), bound("uptime"), bound("tools.list", "tools"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[OpName][]string{
		"disk.usge": {"disk.usage", "disk.usages"}, "Uptime": {"uptime"}, "tool": {"tools"}, "zzz": nil,
		OpName(strings.Repeat("u", 100000)): nil,
	} {
		f := r.UnknownOp(name)
		got, _ := f.Details["nearest"].([]string)
		if f.Code != UnknownOp || !slices.Equal(got, want) || len(f.Message) > 300 {
			t.Errorf("%.20s: got %v %v, want %v", name, f, got, want)
		}
	}
}

// The digest changes with whatever decides what an op does, and with nothing
// else.
func TestDigest(t *testing.T) {
	base := Op{Name: "x", Provider: "p", Summary: "s", Params: Params{{Name: "a", Type: Enum, Values: []string{"v"}}},
		Command: &Command{Argv: []Arg{{Word: "/bin/true"}, {Param: "a"}}}}
	digest := func(change func(*Op)) string {
		op := base
		op.Params, op.Command = slices.Clone(base.Params), &Command{Argv: slices.Clone(base.Command.Argv)}
		change(&op)
		r, err := New(Bound{Op: op, Executor: nothing})
		if err != nil {
			t.Fatal(err)
		}
		return r.All()[0].Digest
	}
	same := digest(func(*Op) {})
	for name, change := range map[string]func(*Op){
		"argv": func(o *Op) { o.Command.Argv[0].Word = "/bin/false" }, "values": func(o *Op) { o.Params[0].Values = []string{"v", "w"} },
		"side effect": func(o *Op) { o.SideEffecting = true }, "timeout": func(o *Op) { o.Timeout = 1 },
	} {
		if digest(change) == same {
			t.Errorf("%s does not change the digest", name)
		}
	}
	if digest(func(o *Op) { o.Summary = "t"; o.Catalog = &Catalog{Label: "x"} }) != same {
		t.Error("words about the op change its digest")
	}
}

// Each field of a definition is in the digest, but for those that are words about it. A
// new field is found here by itself.
func TestDigestCoversEveryField(t *testing.T) {
	var full Op
	fill(reflect.ValueOf(&full).Elem(), 0)
	same := full.digest()
	aside := []string{".Aliases", ".Summary", ".Catalog", ".Examples"}
	found := 0
	leaves(reflect.ValueOf(&full).Elem(), "", func(path string, v reflect.Value) {
		found++
		old := reflect.ValueOf(v.Interface()) // a copy
		change(v)
		about := slices.ContainsFunc(aside, func(p string) bool { return strings.HasPrefix(path, p) })
		if changed := full.digest() != same; changed == about {
			t.Errorf("to change Op%s changes the digest: %t", path, changed)
		}
		v.Set(old)
	})
	if full.digest() != same || found < 40 {
		t.Errorf("%d fields tried", found)
	}
}

// fill gives everything in v that can be set a value that is not its zero. Parameters stand
// in one another twice.
func fill(v reflect.Value, nested int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), nested)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), nested)
			}
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[Params]() {
			if nested++; nested > 2 {
				return
			}
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), nested)
	default:
		change(v)
	}
}

// leaves calls f with everything in v that holds no other thing.
func leaves(v reflect.Value, path string, f func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		leaves(v.Elem(), path, f)
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				leaves(v.Field(i), path+"."+field.Name, f)
			}
		}
	case reflect.Slice:
		if v.Len() > 0 {
			leaves(v.Index(0), path, f)
		}
	default:
		f(path, v)
	}
}

// change gives v, which holds no other thing, another value.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	default:
		panic("a field of kind " + v.Kind().String() + ", which this test cannot change")
	}
}

func TestIDs(t *testing.T) {
	a, b := NewCallID(), NewCallID()
	if a == b || len(a) != 28 || !strings.HasPrefix(string(a), "c-") {
		t.Errorf("got %s and %s", a, b)
	}
	for id, want := range map[IdentityID]bool{"a": true, "agent-1.x_y": true, "": false, "A": false, "-a": false, "a b": false, IdentityID(strings.Repeat("a", 65)): false, "a\n": false} {
		if id.Valid() != want {
			t.Errorf("%q.Valid() is %t", id, !want)
		}
	}
	for n, want := range map[OpName]bool{"a": true, "_x": true, "A.b:c/d-e_1": true, "": false, "1a": false, "a b": false, "a\n": false} {
		if n.Valid() != want {
			t.Errorf("%q.Valid() is %t", n, !want)
		}
	}
	for s, want := range map[State]bool{Received: false, Running: false, Accepted: false, Refused: true, Succeeded: true, Failed: true, Cancelled: true, Unknown: true} {
		if s.Settled() != want {
			t.Errorf("%s.Settled() is %t", s, !want)
		}
	}
	if got := (Identity{}).String(); got != "nobody" {
		t.Errorf("got %s", got)
	}
}
