package httpbroker

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"time"
)

// Headers with canonical names, because net/http looks for them.
const (
	headerAuthorization = "Authorization" // the configured authorization, unless empty
	headerAgent         = "User-Agent"    // the name of this program
	agent               = "Postrider"
)

// send makes one request. The status of the answer decides the verdict. The
// rest matters for the connection only: a little of it is read, for a short
// time, so that the key's next message can reuse the connection.
func (t *target) send(ctx context.Context, j *job) verdict {
	var r reach
	req, v := t.request(httptrace.WithClientTrace(ctx, r.trace()), j)
	if req == nil {
		return v
	}
	transport, err := t.http.current()
	if err != nil {
		return t.cannot(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return judgeError(t.p.Name, err, !r.asked || r.got)
	}
	defer resp.Body.Close() // an error does not matter after the status
	v = judgeStatus(t.p.Name, resp.StatusCode, resp.Header, time.Now())
	stop := time.AfterFunc(drainTime, j.cancel)
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswerBody+1) // as above
	return v
}

// reach records whether a request asked for a connection, and got one. The request
// asks again if no byte of it could be written to the connection.
type reach struct{ asked, got bool }

func (r *reach) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { r.asked, r.got = true, false },
		GotConn: func(httptrace.GotConnInfo) { r.got = true },
	}
}

// drainTime bounds the time for reading the rest of an answer.
const drainTime = 100 * time.Millisecond

// cannot returns the verdict for an unreadable secret, authorization or certificate.
func (t *target) cannot(err error) verdict {
	return verdict{fault: down, code: codeCredential, err: &EndpointError{
		Endpoint: t.p.Name, Reason: "its secret, authorization or certificate cannot be read", Err: err,
	}}
}

// request returns the message's request, signed with the present time.
func (t *target) request(ctx context.Context, j *job) (*http.Request, verdict) {
	h := maps.Clone(j.header) // j.header is compared while this request is in flight
	if t.p.auth != nil {
		value, err := t.p.auth.get(ctx)
		if err != nil {
			return nil, t.cannot(err)
		}
		h[headerAuthorization] = []string{value}
	} else if t.p.basic != "" {
		h[headerAuthorization] = []string{t.p.basic}
	}
	now := time.Now()
	h[headerTimestamp] = []string{stamp(now)}
	if t.p.keys != nil {
		secrets, err := t.p.keys.get(ctx)
		if err != nil {
			return nil, t.cannot(err)
		}
		var signature string
		if !j.body.with(func(data []byte) { signature, err = Sign(secrets, j.name, now, data) }) {
			return nil, judgeError(t.p.Name, errBodyGone, false)
		}
		if err != nil {
			return nil, t.cannot(err)
		}
		h[headerSignature] = []string{signature}
	}
	req := &http.Request{
		Method: http.MethodPost, URL: t.p.url, Host: t.p.url.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: j.body.reader(), ContentLength: int64(j.size),
		GetBody: func() (io.ReadCloser, error) { return j.body.reader(), nil }, // for another connection if the first took no byte of it
	}
	if j.size == 0 { // any other empty body would be sent in chunks
		req.Body, req.GetBody = http.NoBody, nil
	}
	return req.WithContext(ctx), verdict{}
}
