// Command operator-manager gives each terminal session its own operator, out of a few that the
// sessions of this machine share. `operator-manager help` lists its
// commands.
//
// A session is identified by its ITERM_SESSION_ID, else its TERM_SESSION_ID, else by the
// process that started this one: the shell, whose end frees the operator. The panes of tmux, screen
// and zellij are sessions of their own. A program that
// starts each command from a new process, such as cron, an editor or go run, must pass
// --session.
//
// Its texts are in Japanese, as in seed 004, unless LC_ALL, else LC_MESSAGES, else LANG
// names another language: then they are in English. C and POSIX name none.
//
// It exits 0 when done, 1 when refused or failed, 2 on wrong usage or operators.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"taskguard/cmd/internal/printable"
	"taskguard/locks/operator"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// surroundings is a command's environment.
type surroundings struct {
	out, err io.Writer
	getenv   func(string) string
	hostname func() (string, error)
}

// usageError is a wrong invocation, or a wrong file of operators.
type usageError string

func (e usageError) Error() string { return string(e) }

// command is one command, with its help.
type command struct {
	name, arguments, japanese, english string
	do                                 func(ctx context.Context, c *call, argument string) (answer, error)
}

// commands are in the order of the usage text.
var commands = []command{
	{"available", "", "他のセッションが使用していないオペレータを一覧表示する", "list the operators that no other session has", available},
	{"assign", "[ID]", "オペレータを割り当てる: ID、省略時は現在のもの、なければ利用可能ないずれか",
		"take an operator: ID, else keep the current one, else any that is available", assign},
	{"release", "", "オペレータを解放する", "give the operator back", release},
	{"status", "", "このセッションのオペレータと、使用中のオペレータを表示する", "show this session's operator, and which operators are in use", status},
	{"refresh", "", "期限をさらに4時間、または設定された operatorTimeout だけ延長する",
		"keep the operator for another 4 hours, or the configured operatorTimeout", refresh},
	{"clear", "", "どのセッションのものでも、すべての割り当てを解除する", "free all operators of all sessions", clearAll},
}

// call is one invocation.
type call struct {
	surroundings
	operators, state, session string
	json, english             bool
	pool                      *operator.Pool
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], surroundings{
		out: os.Stdout, err: os.Stderr, getenv: os.Getenv, hostname: os.Hostname,
	}))
}

// run runs the command in args and returns the exit code. Unless that is 0, nothing
// is printed to standard output.
func run(ctx context.Context, args []string, s surroundings) int {
	locale := cmp.Or(s.getenv("LC_ALL"), s.getenv("LC_MESSAGES"), s.getenv("LANG"))
	language, _, _ := strings.Cut(strings.ReplaceAll(locale, ".", "_"), "_") // "en" in en_US.UTF-8, "C" in C.UTF-8
	c := &call{surroundings: s, english: !slices.Contains([]string{"", "ja", "C", "POSIX"}, language)}

	out, err := c.dispatch(ctx, args)
	if err == nil {
		if _, err = io.WriteString(s.out, out); err == nil {
			return exitDone
		}
		err = said(c.text("実行は完了しましたが、結果を出力できませんでした: ", "done, but the result was not printed: ") +
			c.reason(err, "出力先に書き込めません"))
	}

	_, _ = fmt.Fprintf(s.err, c.text("エラー", "error")+": %s\n", printable.Lines(c.message(err)))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailed
}

// dispatch runs the command in args and returns its output.
func (c *call) dispatch(ctx context.Context, args []string) (out string, err error) {
	flags := c.flags()
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp), err == nil && len(words) > 0 && words[0] == "help":
		return c.usage(flags), nil
	case err == nil && len(words) == 0:
		return "", usageError(c.text("コマンドがありません (使い方: operator-manager help)",
			"no command (see: operator-manager help)"))
	case err != nil:
		wrong := args[max(0, len(args)-flags.NArg()-1)] // parse has stopped after it, or at it
		return "", usageError(c.text(fmt.Sprintf("フラグが正しくありません: %q", wrong), err.Error()))
	}

	i := slices.IndexFunc(commands, func(candidate command) bool { return candidate.name == words[0] })
	if i < 0 {
		return "", c.misuse("%q というコマンドはありません", "no command %q", words[0])
	}
	arguments := words[1:]
	if len(arguments) > 1 || len(arguments) == 1 && (commands[i].arguments == "" || arguments[0] == "") {
		return "", c.misuse("余分な引数です: %q", "unexpected argument %q", words[len(words)-1])
	}

	if err := c.open(); err != nil {
		return "", err
	}
	a, err := commands[i].do(ctx, c, strings.Join(arguments, ""))
	if err != nil {
		return "", err
	}
	return a.format(c.json), nil
}

// misuse returns the error of a wrong invocation; word is the wrong word.
func (c *call) misuse(japanese, english, word string) error {
	format := c.text(japanese+" (使い方: operator-manager help)", english+" (see: operator-manager help)")
	return usageError(fmt.Sprintf(format, word))
}

// flags returns the flags of every command, which set c's fields.
func (c *call) flags() *flag.FlagSet {
	flags := flag.NewFlagSet("operator-manager", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints its errors
	flags.StringVar(&c.operators, "operators", "", c.text(
		"オペレータ定義`ファイル`。省略時は OPERATORS_FILE、カレントディレクトリの "+operatorsFile+"、内蔵の一覧の順",
		"`FILE` of the operators; else OPERATORS_FILE, else "+operatorsFile+
			" in the current directory, else the built-in ones"))
	flags.StringVar(&c.state, "state", "", c.text(
		"セッション間で共有する状態`ファイル`。省略時は /tmp/coeiroink-operators-HOSTNAME.json",
		"`FILE` that the sessions share; else /tmp/coeiroink-operators-HOSTNAME.json"))
	flags.StringVar(&c.session, "session", "", c.text(
		"セッションの`ID`。省略時は ITERM_SESSION_ID、TERM_SESSION_ID、シェルのプロセスIDの順。tmux などではペインごと",
		"`ID` of the session; else ITERM_SESSION_ID, else TERM_SESSION_ID, else the process id of the shell; each pane of tmux has its own"))
	flags.BoolVar(&c.json, "json", false, c.text("JSON を一つ出力する", "print one JSON document"))
	return flags
}

// parse reads flags, which may stand before, between and after the words of a command, and
// returns the words.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for err = flags.Parse(args); err == nil && flags.NArg() > 0; err = flags.Parse(flags.Args()[1:]) {
		words = append(words, flags.Arg(0))
	}
	return words, err
}

// open opens the pool that the flags and the environment name.
func (c *call) open() error {
	c.operators = cmp.Or(c.operators, c.getenv("OPERATORS_FILE"))
	operators, timeout, err := readOperators(c.operators)
	if err != nil {
		text := c.text("オペレータ定義ファイル %s: %s\n例: %s", "file of operators %s: %s\nexample: %s")
		reason := c.reason(err, "内容が正しくありません")
		return usageError(fmt.Sprintf(text, cmp.Or(c.operators, operatorsFile), reason, operatorsExample))
	}

	if c.state == "" {
		host, err := c.hostname()
		if err != nil {
			return said(c.text("このマシンの名前が分かりません。--state を指定してください", "hostname: "+err.Error()))
		}
		c.state = operator.Path(host)
	}
	if c.session == "" {
		c.session = operator.SessionID(c.getenv, os.Getppid)
	}

	file, err := operator.Open(c.state)
	if err != nil {
		return err
	}
	c.pool, err = operator.New(file, c.state, c.session, operators, operator.Options{
		Timeout: timeout, Alive: alive, Corrupt: func(bytes int) {
			text := c.text("警告: 状態ファイル %s が壊れていたため、新しく作りました (%d バイト)\n",
				"warning: the state file %s was corrupt, and a new one was begun (%d bytes)\n")
			_, _ = fmt.Fprintf(c.err, text, printable.Line(c.state), bytes)
		},
	})
	if err != nil {
		return usageError(c.text("--session または operatorTimeout の値が正しくありません", err.Error()))
	}
	return nil
}

// alive reports whether the process exists.
func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) // EPERM: another user's
}

// usage returns the help.
func (c *call) usage(flags *flag.FlagSet) string {
	var help strings.Builder // its errors are nil
	help.WriteString(c.text("operator-manager コマンド [フラグ…]\n\n", "operator-manager COMMAND [FLAG…]\n\n"))
	for _, known := range commands {
		usage := strings.TrimSpace(known.name + " " + known.arguments)
		_, _ = fmt.Fprintf(&help, "  %-14s %s\n", usage, c.text(known.japanese, known.english))
	}
	help.WriteString(c.text("\n終了コード 0: 完了、1: 拒否または失敗、2: 使い方またはオペレータ定義ファイルの誤り。\n\n",
		"\nExit 0: done, 1: refused or failed, 2: wrong usage or file of operators.\n\n"))
	flags.SetOutput(&help)
	flags.PrintDefaults()
	return help.String()
}

// operatorsFile is read if neither --operators nor OPERATORS_FILE names a file. If it does not exist,
// or the file has no key "operators", the operators are the seed's.
const operatorsFile = "operators.json"

//go:embed operators.json
var builtIn []byte

const operatorsExample = `{"operators": [{"id": "tsukuyomi", "name": "つくよみちゃん"}], "operatorTimeout": 14400000}`

// operators is the content of that file.
type operators struct {
	Operators []operator.Operator `json:"operators"`
	Timeout   int64               `json:"operatorTimeout"` // milliseconds; zero: operator.DefaultTimeout
}

// readOperators reads the operators and their timeout from the file at path. With an empty path it reads
// operatorsFile, and if that does not exist, the seed's operators.
func readOperators(path string) ([]operator.Operator, time.Duration, error) {
	data, err := os.ReadFile(cmp.Or(path, operatorsFile))
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		data, err = builtIn, nil
	}
	if err != nil {
		return nil, 0, err
	}

	var o operators
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, 0, err
	}
	timeout := time.Duration(o.Timeout) * time.Millisecond
	if o.Operators == nil { // the file has only a timeout
		_ = json.Unmarshal(builtIn, &o) // a test shows that it has no error
	}
	for i, operator := range o.Operators {
		o.Operators[i].Name = cmp.Or(operator.Name, operator.ID)
	}
	return o.Operators, timeout, operator.Check(o.Operators)
}
