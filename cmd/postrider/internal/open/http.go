package open

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

func httpKind() kind {
	return kind{
		schemes: []string{"http", "https"}, form: "https://HOST/PATH", sink: openHTTP, source: openHTTPSource,
		params: "  https://[USER:PASSWORD@]HOST/PATH#SETTING=VALUE&...  one webhook endpoint; secret-file=FILE signs; settings:\n" +
			"      allow=ADDRESS,... authorization-file concurrency insecure max-message-bytes ports proxy rate timeout tls-ca ...\n",
	}
}

func webhooksKind() kind {
	return kind{
		schemes: []string{"webhooks"}, form: "webhooks:FILE", sink: openWebhooks,
		params: "  webhooks:FILE  several endpoints, by topic; a change of the file is used within seconds\n",
	}
}

// openHTTP is http:// or https://: one endpoint for every topic, with its
// settings behind a #.
func openHTTP(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := httpbroker.Open(set.Broker, &httpbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

// openWebhooks is webhooks:FILE: the endpoints that the file lists.
func openWebhooks(set *Settings, file string) (*Publisher, error) {
	h := &hookFile{name: file}
	endpoints, err := h.read()
	if err != nil {
		return nil, exit.Usagef("broker webhooks: %w", err)
	}
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	if h.sink, err = httpbroker.NewSink(endpoints, &httpbroker.SinkOptions{Route: router}); err != nil {
		return nil, exit.Usagef("broker webhooks: %s: %w", file, err)
	}
	return &Publisher{Sink: h.sink, Close: h.sink.Close, Watch: h.watch}, nil
}

// hookFile follows the file that lists endpoints.
type hookFile struct {
	name string
	sink *httpbroker.Sink
	seen os.FileInfo
}

// hookLook is how often the file is looked at.
const hookLook = 2 * time.Second

func (h *hookFile) read() ([]httpbroker.Endpoint, error) {
	seen, err := os.Stat(h.name)
	if err == nil {
		h.seen = seen
	}
	listed, err := config.Endpoints(h.name)
	if err != nil {
		return nil, err
	}
	endpoints := make([]httpbroker.Endpoint, 0, len(listed))
	for _, l := range listed {
		e, err := httpbroker.ParseEndpoint(l.URL, l.Settings)
		if err != nil {
			return nil, &config.Error{Where: l.Where, What: err.Error()}
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, nil
}

// watch takes changes of the file over until ctx ends. A file that cannot be used changes
// nothing, and is tried again: the secret that it names, or the right to read it, may follow
// without another change of the file.
func (h *hookFile) watch(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(hookLook)
	defer tick.Stop()
	rejected := "" // why the file was, at the last look
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := os.Stat(h.name)
		if err != nil {
			continue // gone for a moment
		}
		changed := h.seen == nil || !now.ModTime().Equal(h.seen.ModTime()) || now.Size() != h.seen.Size()
		if !changed && rejected == "" {
			continue
		}
		endpoints, err := h.read()
		h.seen = now
		if err == nil {
			err = h.sink.SetEndpoints(endpoints)
		}
		if err == nil {
			rejected = ""
			log.InfoContext(ctx, "endpoints reloaded", "file", h.name, "endpoints", len(endpoints))
			continue
		}
		if why := err.Error(); changed || why != rejected {
			rejected = why
			log.ErrorContext(ctx, "changed endpoints rejected", "error", err)
		}
	}
}

// openHTTPSource listens where the URL points and receives webhooks.
func openHTTPSource(set *Settings, _, _ string) (*Receiver, error) {
	src, err := httpbroker.OpenSource(set.Broker, nil)
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
