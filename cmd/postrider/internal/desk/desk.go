// Package desk serves a console to people: where it listens, who they are, and what they may do.
package desk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/console"
)

// DefaultListen is the address of the console where none is given.
const DefaultListen = "127.0.0.1:9465"

// Settings say where a console listens and who may use it.
type Settings struct {
	Listen           string
	TLSCert, TLSKey  string // files, read again for each connection
	Tokens           string // file of tokens; "": no tokens
	Role             string // of everybody where there are neither tokens nor a proxy
	Proxies          []string
	ProxySecretFile  string
	ProxyUserHeader  string
	ProxyGroupHeader string
	ProxyRoles       []string // GROUP=ROLE

	Actor  string // the user's name where there are neither tokens nor a proxy
	Logger *slog.Logger
}

// secretHeader is where a proxy proves that it is the declared one.
const secretHeader = "X-Postrider-Proxy-Secret" //nolint:gosec // a name

// Desk is a console that is served.
type Desk struct {
	set    Settings
	tokens *tokens
	proxy  *proxy
	role   console.Role
	secure bool // browsers speak TLS
	server *http.Server
	done   chan struct{}
}

// New checks the settings. It refuses those under which others than the user of this machine
// could act.
func New(set Settings) (*Desk, error) {
	d := &Desk{set: set}
	host, _, err := net.SplitHostPort(set.Listen)
	if err != nil {
		return nil, exit.Usagef("listen is %s: write HOST:PORT such as %s", redact.Word(set.Listen), DefaultListen)
	}
	if d.role, err = console.ParseRole(set.Role); err != nil {
		return nil, exit.Usagef("%v", err)
	}
	if (set.TLSCert == "") != (set.TLSKey == "") {
		return nil, exit.Usagef("give --tls-cert and --tls-key together")
	}
	if set.Tokens != "" && len(set.Proxies) > 0 {
		return nil, exit.Usagef("--tokens does not go with --proxy: the proxy signs people in; leave one of them out")
	}
	if d.proxy, err = proxyOf(&set); err != nil {
		return nil, err
	}
	if set.Tokens != "" {
		if d.tokens, err = openTokens(set.Tokens, set.Logger); err != nil {
			return nil, err
		}
	}
	switch known, covered := d.tokens != nil || d.proxy != nil, set.TLSCert != "" || d.proxy != nil; {
	case isLoopback(host):
	case !known:
		return nil, exit.Usagef("listen is %s, which other machines can reach, and there is no authentication: use 127.0.0.1, or add --tokens and TLS, or --proxy", redact.Word(set.Listen))
	case !covered:
		return nil, exit.Usagef("listen is %s, which other machines can reach, and tokens would travel in clear: add --tls-cert and --tls-key, or --proxy", redact.Word(set.Listen))
	}
	d.secure = set.TLSCert != ""
	return d, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Options are those of the console behind the desk.
func (d *Desk) Options() console.Options {
	o := console.Options{Authenticate: d.authenticate, Logger: d.set.Logger}
	if d.tokens != nil {
		o.Login, o.Logout = http.HandlerFunc(d.loginPage), "/logout"
	}
	// The journal of a store without one is the log of the console, which has written the line.
	o.NoteRead = func(ctx context.Context, _ console.Read) error {
		if !d.set.Logger.Enabled(ctx, slog.LevelInfo) {
			return errors.New("this store has no journal, and the log of the console leaves out who reads: start it with --log-level info")
		}
		return nil
	}
	return o
}

// authenticate says who sends a request.
func (d *Desk) authenticate(r *http.Request) (console.User, error) {
	switch {
	case d.tokens != nil:
		return d.tokens.user(r, d.secure)
	case d.proxy != nil:
		return d.proxy.user(r)
	}
	// A page of another site whose name leads to this machine would have that name here.
	if host, _, err := net.SplitHostPort(r.Host); err != nil || !isLoopback(host) {
		if !isLoopback(r.Host) {
			return console.User{}, errors.New("this console is for the user of this machine: open it as 127.0.0.1 or localhost")
		}
	}
	return console.User{Name: d.set.Actor, Role: d.role}, nil
}

// Start begins to listen, and returns the address for a browser.
func (d *Desk) Start(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", d.set.Listen)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return "", fmt.Errorf("cannot listen on %s: %w; choose another --listen, 127.0.0.1:0 for any port", d.set.Listen, err)
	}
	scheme := "http"
	if d.secure {
		pair := &certificate{cert: d.set.TLSCert, key: d.set.TLSKey, logger: d.set.Logger}
		if _, err := pair.show(nil); err != nil {
			_ = l.Close()
			return "", exit.Usagef("tls-cert and tls-key cannot be used: %v", err)
		}
		l = tls.NewListener(l, &tls.Config{GetCertificate: pair.show, MinVersion: tls.VersionTLS12})
		scheme = "https"
	}
	mux := http.NewServeMux()
	if d.tokens != nil {
		mux.HandleFunc("POST /login", d.login)
		mux.HandleFunc("POST /logout", d.logout)
	}
	mux.Handle("/", h)
	d.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(d.set.Logger.Handler(), slog.LevelDebug),
	}
	d.done = make(chan struct{})
	go func() {
		defer close(d.done)
		if err := d.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.set.Logger.Error("listener ended", "error", err)
		}
	}()
	return scheme + "://" + l.Addr().String() + "/", nil
}

// Stop ends the listener, with a moment for what is being answered.
func (d *Desk) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if d.server.Shutdown(ctx) != nil {
		_ = d.server.Close()
	}
	<-d.done
}

// proxy authenticates people before the console, and names them in headers.
type proxy struct {
	from          []netip.Prefix
	secret        string
	users, groups string // headers
	roles         map[string]console.Role
}

func proxyOf(set *Settings) (*proxy, error) {
	if len(set.Proxies) == 0 {
		if set.ProxySecretFile != "" || len(set.ProxyRoles) > 0 {
			return nil, exit.Usagef("--proxy-secret-file and --proxy-role have no effect without --proxy")
		}
		return nil, nil
	}
	p := &proxy{users: set.ProxyUserHeader, groups: set.ProxyGroupHeader, roles: map[string]console.Role{}}
	for _, text := range set.Proxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, exit.Usagef("proxy is %s: write a network such as 10.0.0.7/32", redact.Word(text))
		}
		p.from = append(p.from, prefix)
	}
	if set.ProxySecretFile == "" {
		return nil, exit.Usagef("--proxy needs --proxy-secret-file: the proxy sends its content as " + secretHeader + ", so that nobody else can name a user")
	}
	data, err := os.ReadFile(set.ProxySecretFile)
	if err != nil {
		return nil, exit.Usagef("proxy-secret-file cannot be read: %v", err)
	}
	const shortest = 16
	if p.secret = strings.TrimSpace(string(data)); len(p.secret) < shortest {
		return nil, exit.Usagef("proxy-secret-file holds %d bytes: use %d or more random ones", len(p.secret), shortest)
	}
	if len(set.ProxyRoles) == 0 {
		return nil, exit.Usagef("--proxy needs --proxy-role GROUP=ROLE; the group * is everybody")
	}
	for _, text := range set.ProxyRoles {
		group, name, ok := strings.Cut(text, "=")
		role, err := console.ParseRole(name)
		if !ok || err != nil || group == "" {
			return nil, exit.Usagef("proxy-role is %s: write GROUP=ROLE with viewer, payload, operator or admin", redact.Word(text))
		}
		p.roles[group] = role
	}
	return p, nil
}

// user is whom the proxy names. A request that does not come from it has no user.
func (p *proxy) user(r *http.Request) (console.User, error) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return console.User{}, errors.New("the sender has no address")
	}
	known := false
	for _, prefix := range p.from {
		known = known || prefix.Contains(from.Addr().Unmap())
	}
	if !known || !equal(r.Header.Get(secretHeader), p.secret) {
		return console.User{}, errors.New("open the console through its proxy")
	}
	u := console.User{Name: strings.TrimSpace(r.Header.Get(p.users))}
	if u.Name == "" || len(r.Header.Values(p.users)) != 1 {
		return console.User{}, errors.New("the proxy names no user in " + p.users)
	}
	if len(r.Header.Values(p.groups)) > 1 {
		return console.User{}, errors.New("more than one header " + p.groups + " names groups: the proxy must remove that of the browser")
	}
	rank := map[console.Role]int{}
	for i, role := range console.Roles() {
		rank[role] = i + 1
	}
	groups := append(strings.Split(r.Header.Get(p.groups), ","), "*")
	for _, g := range groups {
		if role := p.roles[strings.TrimSpace(g)]; rank[role] > rank[u.Role] {
			u.Role = role
		}
	}
	return u, nil
}
