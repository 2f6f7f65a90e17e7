package httpbroker_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/httpbroker"
)

func TestParseURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(file, []byte(vectorSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOOK_AUTHORIZATION", "Bearer geheim")
	target, err := httpbroker.ParseURL("https://h/in?tenant=7#secret-file=" + file + "&authorization-env=HOOK_AUTHORIZATION&topics=a,+b.*&name=billing" +
		"&concurrency=3&rate=2.5&timeout=20s&dial-timeout=1s&tls-timeout=2s&max-message-bytes=1000&allow=10.0.0.0/8,::1&ports=8443,9443&stopped=true")
	if err != nil {
		t.Fatal(err)
	}
	e := target.Endpoint
	text, _ := e.Secrets(t.Context())
	auth, _ := e.Authorization(t.Context())
	if e.URL != "https://h/in?tenant=7" || text != vectorSecret || auth != "Bearer geheim" || fmt.Sprint(e.Topics) != "[a b.*]" ||
		e.Name != "billing" || e.Concurrency != 3 || e.Rate != 2.5 || e.Timeout != 20*time.Second || e.DialTimeout != time.Second ||
		e.TLSTimeout != 2*time.Second || e.MaxMessageBytes != 1000 || !e.Stopped || fmt.Sprint(e.Ports) != "[8443 9443]" ||
		fmt.Sprint(e.Allow) != fmt.Sprint([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}) {
		t.Errorf("endpoint %+v", e)
	}
	if _, err := httpbroker.NewSink([]httpbroker.Endpoint{e}, nil); err != nil {
		t.Error(err)
	}
}

func TestParseURLRefuses(t *testing.T) {
	for _, settings := range []string{
		"secret=geheim", "concurrency=0", "concurrency=geheim", "rate=0", "rate=NaN", "rate=-1", "timeout=5", "timeout=-1s", "max-message-bytes=-1",
		"topics=geheim,,a", "topics=+", "allow=geheim", "allow=10.0.0.0/33", "ports=70000", "unsigned=yes", "insecure=1", "name=", "timeout=1s&timeout=2s", "%zz",
		"secret-file=a&secret-env=b", "tls-cert=a", "unsigned=true;insecure=true",
	} {
		_, err := httpbroker.ParseURL("https://user:geheim@h/geheim#" + settings)
		if !errors.Is(err, httpbroker.ErrEndpoint) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", settings, err)
		}
	}
	for _, raw := range []string{"https://user:12#geheim@h/in", "https://user:12#geheim&x@h", "https://user:12#a=b&geheim@h"} {
		_, err := httpbroker.ParseURL(raw)
		if !errors.Is(err, httpbroker.ErrEndpoint) || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "percent-encode") {
			t.Errorf("a # in the password: %v", err)
		}
	}
}
