package webhook

import (
	"strings"
)

// maxToken bounds what is taken for a token, in bytes.
const maxToken = 4096

var entities = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&")

// unescape undoes the escaping of platforms that write <, > and & of their users as
// entities and use < and > for tokens: <URL> and <URL|label> become the URL, <@user|name>
// becomes @user, <#room|name> #room and <!word> !word. Tokens are looked for first, so
// that what a user has typed never becomes one; each entity is decoded once.
func unescape(s string) string { return undo(s, false) }

// labelled is the same as the platform shows it: with the labels of tokens in their places.
func labelled(s string) string { return undo(s, true) }

func undo(s string, labels bool) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			break
		}
		inside, found := token(s[i:])
		if !found {
			b.WriteString(entities.Replace(s[:i+1]))
			s = s[i+1:]
			continue
		}
		b.WriteString(entities.Replace(s[:i]))
		s = s[i+len(inside)+2:]
		name, label, _ := strings.Cut(inside, "|")
		if labels && label != "" {
			name = label
		}
		b.WriteString(entities.Replace(name))
	}
	b.WriteString(entities.Replace(s))
	return b.String()
}

// token returns what stands between < and > at the start of s, if that is a token.
func token(s string) (inside string, ok bool) {
	end := strings.IndexAny(s[1:min(len(s), maxToken)], "<>\n")
	if end < 1 || s[1+end] != '>' {
		return "", false
	}
	inside = s[1 : 1+end]
	name, _, _ := strings.Cut(inside, "|")
	if strings.ContainsAny(name, " \t") {
		return "", false
	}
	for _, prefix := range []string{"@", "#", "!", "http://", "https://", "mailto:"} {
		if len(name) > len(prefix) && strings.HasPrefix(name, prefix) {
			return inside, true
		}
	}
	return "", false
}
