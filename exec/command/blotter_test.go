package command

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"inband/ops"
)

// However a stream is cut into pieces, what is told of it is the same, and no secret is in
// it.
func FuzzBlotter(f *testing.F) {
	f.Add([]byte("a token-of-mine b"), uint8(3))
	f.Add([]byte(strings.Repeat("aaaaaaaa", 9)+"token-of-mintoken-of-mine"), uint8(1))
	f.Add([]byte(hex.EncodeToString([]byte("token-of-mine"))+"aaaaaaaab"+base64.StdEncoding.EncodeToString([]byte("x token-of-mine"))), uint8(7))
	secrets := map[ops.CredentialRef][]byte{"file:a": []byte("token-of-mine"), "file:b": []byte("aaaaaaaa"), "file:c": []byte("mine aaaaaaaa token")}
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		whole := NewBlotter(secrets)
		want := append(slices.Clone(whole.Add(stream)), whole.End()...)
		pieces := NewBlotter(secrets)
		var got []byte
		for piece := range slices.Chunk(stream, int(size)+1) {
			got = append(got, pieces.Add(piece)...)
			if len(pieces.text) > 2*pieces.most+len(piece) {
				t.Fatalf("it holds %d bytes", len(pieces.text))
			}
		}
		got = append(got, pieces.End()...)
		if !bytes.Equal(got, want) {
			t.Errorf("in pieces of %d: got %q, want %q", int(size)+1, got, want)
		}
		for ref, value := range secrets {
			if plain := bytes.ReplaceAll(got, []byte("[secret "+string(ref)+"]"), nil); bytes.Contains(plain, value) && bytes.Contains(got, value) {
				t.Errorf("%s is in %q", ref, got)
			}
		}
		if !bytes.Contains(stream, []byte("aaaa")) && !bytes.Contains(stream, []byte("mine")) && len(whole.b.find(stream)) == 0 && !bytes.Equal(got, stream) {
			t.Errorf("nothing to blot: got %q, want %q", got, stream)
		}
	})
}

func TestBlotterWithoutSecrets(t *testing.T) {
	b := NewBlotter(nil)
	if got := string(b.Add([]byte("as it is"))) + string(b.End()); got != "as it is" {
		t.Errorf("got %q", got)
	}
}
