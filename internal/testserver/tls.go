package testserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CA is a certificate authority of one test.
type CA struct {
	File string // its certificate, PEM

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority and writes its certificate into dir.
func NewCA(dir string) (*CA, error) {
	ca := &CA{File: filepath.Join(dir, "ca.crt")}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, os.WriteFile(ca.File, encode("CERTIFICATE", der), 0o644)
}

// Issue makes a certificate for name, valid for hosts if it is a server's, and
// returns certificate and key as PEM.
func (ca *CA) Issue(name string, hosts ...string) (cert, key []byte, err error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &private.PublicKey, ca.key)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw), nil
}

// IssueFiles calls Issue and writes name.crt and name.key into dir.
func (ca *CA) IssueFiles(dir, name string, hosts ...string) (certFile, keyFile string, err error) {
	cert, key, err := ca.Issue(name, hosts...)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(certFile, cert, 0o644); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, key, 0o600)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// UseTLS gives the running server a certificate of ca for 127.0.0.1, makes it trust
// ca's client certificates, and puts rules before the rules of pg_hba.conf.
func (p *Postgres) UseTLS(ctx context.Context, ca *CA, rules ...string) error {
	cert, key, err := ca.Issue("server", "127.0.0.1")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(ca.File)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"ca.crt": authority, "server.crt": cert, "server.key": key} {
		path, err := p.proc.home.write(filepath.Join("data", name), []string{strings.TrimSpace(string(text))})
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("testserver: %w", err)
		}
	}
	hba := filepath.Join(p.Dir, "data", "pg_hba.conf")
	old, err := os.ReadFile(hba)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	if _, err := p.proc.home.write("data/pg_hba.conf", append(rules, string(old))); err != nil {
		return err
	}
	for _, text := range []string{
		"ALTER SYSTEM SET ssl_ca_file = 'ca.crt'", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()",
	} {
		if _, err := p.Query(ctx, "postgres", text); err != nil {
			return err
		}
	}
	return p.untilTLS(ctx)
}

// untilTLS waits until a new session has the changed settings.
func (p *Postgres) untilTLS(ctx context.Context) error {
	for ctx.Err() == nil {
		rows, err := p.Query(ctx, "postgres", "SELECT current_setting('ssl')")
		if err != nil || rows[0][0] == "on" {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return ctx.Err()
}
