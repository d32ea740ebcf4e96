package ops

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// This file is about what a process is started with: the words of its argv and its
// environment, and what must not be in them.

// endOfOptions are the words that keep what follows from being an option.
var endOfOptions = []string{"--", "--end-of-options"}

// placeholder is the word of an op file's argv that becomes the program's own word for
// the end of options.
const placeholder = "--end"

// ending is what end_of_options says: the program's own word, or that it has none.
type ending struct {
	line int // 0 if the op does not say
	word string
	none bool
}

var endWord = lazily(`^-[A-Za-z0-9-]{1,63}$`)

func (r *fileReader) ending(n *node) ending {
	s := r.text(n, "end_of_options", 300)
	why, none := strings.CutPrefix(s, "unsupported because ")
	switch {
	case n.kind != stringNode:
	case none && strings.TrimSpace(why) != "":
		return ending{line: n.line, none: true}
	case endWord().MatchString(s) && s != placeholder:
		return ending{line: n.line, word: s}
	default:
		r.bad(n.line, "end_of_options: want \"unsupported because\" and the reason, or the program's own word, which %s in argv becomes", placeholder)
	}
	return ending{line: n.line, none: true}
}

func (r *fileReader) argv(n *node, params Params, end ending) []Arg {
	if n.kind != sequenceNode || len(n.items) == 0 {
		r.want(n, "argv", "a list: the program, then its words")
		return nil
	}
	var argv []Arg
	ended, replaced, supplied := end.none, false, 0
	for i, item := range n.items {
		switch item.kind {
		case stringNode:
			w := r.text(item, "a word of argv", MaxString)
			if strings.ContainsAny(w, "{}") {
				r.bad(item.line, "the word %q holds a brace; a value is a whole element, written {param: NAME}", clip(w))
			}
			if i == 0 && (!filepath.IsAbs(w) || filepath.Clean(w) != w || w == "/") {
				r.bad(item.line, "the program %q: want a clean absolute path", clip(w))
			}
			if w == placeholder {
				switch {
				case replaced:
					r.bad(item.line, "%s stands twice; options end once", placeholder)
				case end.word == "":
					r.bad(item.line, "%s becomes the program's own word for the end of options; name that: end_of_options: WORD", placeholder)
				}
				w, ended, replaced = cmp.Or(end.word, w), true, true
			}
			ended = ended || slices.Contains(endOfOptions, w)
			argv = append(argv, Arg{Word: w})
		case mappingNode:
			var name string
			r.mapping(item, "an element of argv", fields{"param": func(n *node) { name = r.text(n, "param", MaxNameLen) }}, "param")
			argv = append(argv, Arg{Param: name})
			if i == 0 {
				r.bad(item.line, "the program is a parameter; want a fixed absolute path")
			}
			p := params.find(name)
			if p == nil {
				r.bad(item.line, "argv uses the parameter %q, which is not declared; declare it in params", clip(name))
				continue
			}
			supplied = item.line
			switch {
			case p.Stdin():
				r.bad(item.line, "the parameter %s is the standard input and no word; %s", clip(name), otherwise(p.Type))
			case !ended && (p.Type == Pattern || p.Type == Host || p.Type == Int && p.Min < 0):
				r.bad(item.line, "the parameter %s stands before the end of options; put \"--\" in front of it, or write "+
					"end_of_options: unsupported because, and the reason", clip(name))
			}
		default:
			r.want(item, "an element of argv", "a string (quote it), or {param: NAME}")
		}
	}
	if end.word != "" && !replaced {
		r.bad(end.line, "end_of_options names %s, and argv does not say where it goes; put %s there", end.word, placeholder)
	}
	if supplied > 0 && len(argv) > 0 {
		if why := Dispatches(argv, params); why != "" {
			r.bad(supplied, "%s, and the caller supplies a word of it; name the program itself", why)
		}
	}
	return argv
}

// otherwise says how a value that is the standard input could be a word.
func otherwise(t Type) string {
	if ways[t] == nil || len(ways[t]) == 1 {
		return "remove it from argv"
	}
	return "remove it from argv, or say as: " + ways[t][1]
}

// interpreters are programs that run what their words say, by the names they go
// by; a version at the end of a name does not count.
var interpreters = strings.Fields(`
	sh bash rbash dash ash zsh ksh mksh csh tcsh fish busybox toybox
	awk gawk mawk nawk original-awk sed ed ex vi vim view nano emacs less more most man
	perl python pypy ruby node nodejs deno bun php lua luajit tclsh wish expect guile R Rscript java jshell osascript pwsh
	env xargs parallel sudo su doas pkexec runuser setpriv capsh chroot unshare nsenter setarch linux32 linux64
	nice ionice nohup timeout stdbuf setsid taskset chrt flock watch time script strace ltrace gdb valgrind perf
	start-stop-daemon systemd-run systemd-nspawn dbus-run-session run-parts at batch crontab make ssh sshpass docker podman nerdctl kubectl crictl lxc machinectl
	su-exec gosu bwrap firejail proot fakeroot prlimit choom numactl catchsegv entr tmux screen
	m4 dc sqlite3 psql mysql mariadb gnuplot octave socat nc ncat`)

// dispatchers are programs that run others when these words are among theirs.
var dispatchers = map[string][]string{
	"find": {"-exec", "-execdir", "-ok", "-okdir"},
	"ip":   {"exec"},
	"fd":   {"-x", "-X", "--exec", "--exec-batch"},
	"tar":  {"--to-command", "--checkpoint-action", "-I", "--use-compress-program"},

	"rsync":   {"-e", "--rsh", "--rsync-path"},
	"scp":     {"-S"},
	"sort":    {"--compress-program"},
	"split":   {"--filter"},
	"tcpdump": {"-z"},
}

// Dispatches says why a program runs other programs, or code, that its words
// name; "" if it is not known to. The words that a bool of params selects are among them. A
// word that a caller supplies to such a program is a program that the caller chooses.
func Dispatches(argv []Arg, params Params) string {
	base := path.Base(argv[0].Word)
	name := strings.TrimRight(base, "0123456789.")
	name = strings.TrimSuffix(name, "-")
	if slices.Contains(interpreters, base) || slices.Contains(interpreters, name) || loader.MatchString(base) {
		return base + " runs what its words say"
	}
	var words []string
	for _, a := range argv[1:] {
		if a.Param == "" {
			words = append(words, a.Word)
		} else if p := params.find(a.Param); p != nil {
			words = append(append(words, p.Then...), p.Else...)
		}
	}
	for _, w := range words {
		word, _, _ := strings.Cut(w, "=")
		if word != "" && slices.Contains(dispatchers[base], word) {
			return base + " " + word + " runs another program"
		}
	}
	return ""
}

// loader is what the system's loader goes by, which runs the program that it is given:
// ld.so, ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, ld-musl-x86_64.so.1, ld64.so.2.
var loader = regexp.MustCompile(`^ld[0-9]*(-.*)?\.so(\.[0-9]+)?$`)

var envName = lazily(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// maxEnv is the most variables that an op may set.
const maxEnv = 64

// env reads the environment of an op's process.
func (r *fileReader) env(n *node) (env []EnvVar) {
	if n.kind != mappingNode || len(n.entries) > maxEnv {
		r.want(n, "env", fmt.Sprintf("a mapping of at most %d variables", maxEnv))
		return nil
	}
	for _, e := range n.entries {
		v := EnvVar{Name: e.key}
		what := "the variable " + clip(e.key)
		if !envName().MatchString(e.key) {
			r.bad(e.line, "variable %q: want a letter or _, then letters, digits or _, at most 128", clip(e.key))
		} else if why := steers(e.key); why != "" {
			r.bad(e.line, "%s: %s; remove it, and write what the program needs into argv or its own configuration", what, why)
		}
		if e.value.kind == mappingNode {
			r.mapping(e.value, what, fields{"credential": func(n *node) {
				v.Credential = CredentialRef(r.text(n, "credential", 200))
				if n.kind == stringNode && !v.Credential.Valid() {
					r.bad(n.line, "credential %q: want file:NAME, env:NAME or systemd:NAME, never the secret itself", clip(n.text))
				}
			}}, "credential")
		} else {
			v.Value = r.text(e.value, what, MaxString)
		}
		if v.Name == "PATH" && (v.Credential != "" || slices.ContainsFunc(strings.Split(v.Value, ":"), func(dir string) bool {
			return !filepath.IsAbs(dir) || filepath.Clean(dir) != dir
		})) {
			r.bad(e.line, "PATH: want clean absolute folders with colons between them")
		}
		env = append(env, v)
	}
	return env
}

// steering are variables by which a program runs code, or another program, that its op
// file does not name as such, by what they do.
var steering = map[string][]string{
	"the loader or a library takes code from it": strings.Fields(`GCONV_PATH GLIBC_TUNABLES GETCONF_DIR LOCPATH NLSPATH MALLOC_TRACE
		OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES GIO_EXTRA_MODULES GTK_MODULES KRB5_CONFIG`),
	"a shell runs what it says": strings.Fields(`ENV BASH_ENV IFS SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE ZDOTDIR FPATH`),
	"an interpreter takes code or options from it": strings.Fields(`PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONBREAKPOINT PYTHONWARNINGS PYTHONINSPECT
		PERL5OPT PERL5LIB PERLLIB PERL5DB RUBYOPT RUBYLIB RUBYSHELL GEM_PATH GEM_HOME BUNDLE_GEMFILE NODE_OPTIONS NODE_PATH
		JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH PHPRC PHP_INI_SCAN_DIR LUA_INIT LUA_PATH LUA_CPATH TCLLIBPATH AWKPATH AWKLIBPATH
		R_PROFILE R_PROFILE_USER R_ENVIRON R_LIBS JULIA_LOAD_PATH ERL_FLAGS ERL_AFLAGS ERL_ZFLAGS GOFLAGS MAKEFLAGS`),
	"it names a program that another starts": strings.Fields(`SHELL EDITOR VISUAL FCEDIT PAGER MANPAGER BROWSER LESSOPEN LESSCLOSE SSH_ASKPASS SUDO_ASKPASS RSYNC_RSH CVS_RSH
		TAR_OPTIONS GZIP XZ_OPT GIT_SSH GIT_SSH_COMMAND GIT_PROXY_COMMAND GIT_EXTERNAL_DIFF GIT_PAGER GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_ASKPASS GIT_EXEC_PATH
		GIT_TEMPLATE_DIR GIT_CONFIG GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_COUNT GIT_CONFIG_PARAMETERS`),
	"it sends names elsewhere": strings.Fields(`HOSTALIASES RESOLV_HOST_CONF`),
}

// steers says why a variable is not for an op file, "" if it is.
func steers(name string) string {
	switch {
	case strings.HasPrefix(name, "LD_"), strings.HasPrefix(name, "DYLD_"):
		return "the loader or a library takes code from it"
	case strings.HasPrefix(name, "LUA_INIT"):
		name = "LUA_INIT" // with a version behind it
	case strings.HasPrefix(name, "GIT_CONFIG_"):
		name = "GIT_CONFIG"
	}
	for why, names := range steering {
		if slices.Contains(names, name) {
			return why
		}
	}
	return ""
}
