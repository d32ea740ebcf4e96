package envelope

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"inband/ops"
)

// Bounds of a Result.
const (
	MaxSummary = 2000 // bytes
	MaxRefs    = 20
	MaxRef     = 500 // bytes of one
)

// Result is what an agent says of its wake in [RESULT {…}].
type Result struct {
	Verdict string   // done, failed, blocked or waiting
	Summary string   // at most MaxSummary bytes; may be empty
	Refs    []string // at most MaxRefs, of at most MaxRef bytes; may be none
}

// ReadResult reads the object of a [RESULT {…}]. It is strict: only the names verdict,
// summary and refs, none twice, each of its type and within its bounds; verdict must be
// there. What is wrong is an InvalidParams fault that says where and what would be right.
func ReadResult(params []byte) (Result, error) {
	var members struct {
		Verdict jsontext.Value `json:"verdict"`
		Summary jsontext.Value `json:"summary"`
		Refs    jsontext.Value `json:"refs"`
	}
	err := json.Unmarshal(params, &members, json.RejectUnknownMembers(true))
	if err != nil || jsontext.Value(params).Kind() != '{' {
		return Result{}, wrong("", `{"verdict":…,"summary":…,"refs":[…]}, with no other name and none twice`)
	}
	var r Result
	if r.Verdict, err = text(members.Verdict, "/verdict", 0); err != nil {
		return Result{}, err
	}
	switch r.Verdict {
	case "done", "failed", "blocked", "waiting":
	default:
		return Result{}, wrong("/verdict", "done, failed, blocked or waiting")
	}
	if members.Summary != nil {
		if r.Summary, err = text(members.Summary, "/summary", MaxSummary); err != nil {
			return Result{}, err
		}
	}
	if members.Refs == nil {
		return r, nil
	}
	var refs []jsontext.Value
	if members.Refs.Kind() != '[' || json.Unmarshal(members.Refs, &refs) != nil || len(refs) > MaxRefs {
		return Result{}, wrong("/refs", fmt.Sprintf("an array of at most %d strings", MaxRefs))
	}
	for i, v := range refs {
		ref, err := text(v, fmt.Sprintf("/refs/%d", i), MaxRef)
		if err != nil {
			return Result{}, err
		}
		r.Refs = append(r.Refs, ref)
	}
	return r, nil
}

// text reads a string of at most most bytes; 0 is no bound.
func text(v jsontext.Value, pointer string, most int) (string, error) {
	want := "a string"
	if most > 0 {
		want = fmt.Sprintf("a string of at most %d bytes", most)
	}
	if v.Kind() != '"' {
		return "", wrong(pointer, want)
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil || most > 0 && len(b) > most {
		return "", wrong(pointer, want)
	}
	return string(b), nil
}

func wrong(pointer, want string) error {
	at := pointer
	if at == "" {
		at = "the result"
	}
	return ops.Faultf(ops.InvalidParams, "%s: want %s", at, want).With("pointer", pointer).With("want", want)
}
