package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// healthTime is how long a relay of this machine may take to answer.
const healthTime = 3 * time.Second

func (a *app) healthCommand() *cobra.Command {
	var (
		listen string
		ready  bool
	)
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the relay of this machine whether it is live",
		Long: "Ask /healthz of the relay's --listen, for the health checks of containers and scripts. Exit code 0 means\n" +
			"live, 1 not live, 4 no answer within 3 s.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := healthURL(listen, ready)
			if err != nil {
				return err
			}
			body, err := askHealth(cmd.Context(), address, ready)
			if err != nil {
				return err
			}
			return a.print(body, func(w *tabwriter.Writer) { output.Row(w, healthWord(ready)) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&listen, "listen", daemon.DefaultListen, "address that the relay listens on")
	fs.BoolVar(&ready, "ready", false, "ask /readyz: also whether database and broker answer")
	config.MarkAll(fs, "listen")
	return cmd
}

func healthWord(ready bool) string {
	if ready {
		return "ready"
	}
	return "live"
}

// healthURL is where a relay with this --listen answers on its own machine.
func healthURL(listen string, ready bool) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "" || port == "0" {
		return "", exit.Usagef("listen is %s: give the HOST:PORT that the relay listens on, such as %s", redact.Word(listen), daemon.DefaultListen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost" // it listens on every address
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: "/healthz"}
	if ready {
		u.Path = "/readyz"
	}
	return u.String(), nil
}

// askHealth returns the relay's answer, or an error unless it is good.
func askHealth(ctx context.Context, address string, ready bool) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // never by a proxy of the environment
	resp, err := direct.Do(req)
	if err != nil {
		return nil, exit.Withf(exit.Unreachable, "no answer from the relay: %w; is it running with this --listen?", err)
	}
	defer resp.Body.Close()
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, exit.Withf(exit.Unreachable, "the relay's answer ended early: %w", err)
	}
	switch {
	case !json.Valid(body):
		return nil, exit.Withf(exit.Failure, "%s is not a relay: it answered %s without JSON", address, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the relay is not %s: %s", healthWord(ready), body)
	}
	return body, nil
}
