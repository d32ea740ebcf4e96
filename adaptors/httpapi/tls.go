package httpapi

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The files of the local CA, in its folder.
const (
	caFile        = "ca.pem"     // what clients trust
	caKeyFile     = "ca.key"     // 0600
	serverFile    = "server.pem" // what the gateway shows
	serverKeyFile = "server.key" // 0600
)

const (
	caLife     = 10 * 365 * 24 * time.Hour
	serverLife = 730 * 24 * time.Hour // below the 825 days that clients accept
	renewAhead = 90 * 24 * time.Hour  // a server certificate with less left is issued anew
	clockSkew  = time.Hour            // that a client's clock may be behind
)

// LoadOrMakeCA returns the certificate that the gateway shows for localhost,
// 127.0.0.1, ::1 and hosts, and the PEM of the local CA that signed it. What dir does
// not hold yet is made: the CA and both keys once, the server's certificate again
// whenever it nears its end or hosts change. Both keys stay, so nothing that a crash
// can leave behind is contradictory.
//
// Files that are damaged, do not belong together, or hold a key that others may read
// are an error that says what to do; nothing of the operator's is overwritten. The
// caller sees to it that no other process uses dir.
func LoadOrMakeCA(dir string, hosts []string) (tls.Certificate, []byte, error) {
	cert, ca, err := loadOrMakeCA(dir, hosts, time.Now())
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("certificates in %s: %w", dir, err)
	}
	return cert, ca, nil
}

func loadOrMakeCA(dir string, hosts []string, now time.Time) (cert tls.Certificate, caPEM []byte, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cert, nil, err
	}
	ca, caKey, err := authority(dir, now)
	if err != nil {
		return cert, nil, err
	}
	key, err := loadOrMakeKey(filepath.Join(dir, serverKeyFile))
	if err != nil {
		return cert, nil, err
	}
	dns, ips := names(hosts)
	path := filepath.Join(dir, serverFile)
	leaf, err := loadCertificate(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return cert, nil, err
	case !samePublicKey(leaf.PublicKey, key.Public()):
		return cert, nil, fmt.Errorf("%s is not the certificate of %s; remove %[1]s to have it made again", path, serverKeyFile)
	case leaf.CheckSignatureFrom(ca) != nil, !sameNames(leaf, dns, ips), now.Before(leaf.NotBefore), leaf.NotAfter.Sub(now) < renewAhead && leaf.NotAfter.Before(ca.NotAfter):
		leaf = nil
	}
	if leaf == nil {
		if leaf, err = issue(path, ca, caKey, key, dns, ips, now); err != nil {
			return cert, nil, err
		}
	}
	cert = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), nil
}

// authority returns the CA of dir, made if there is none.
func authority(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	path, keyPath := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	ca, err := loadCertificate(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if _, missing := os.Stat(keyPath); ca != nil && errors.Is(missing, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s is missing; restore it, or remove %s to begin a new CA, which every client must then be given", keyPath, path)
	}
	key, err := loadOrMakeKey(keyPath)
	if err != nil {
		return nil, nil, err
	}
	if ca == nil {
		ca, err = makeAuthority(path, key, now)
		return ca, key, err
	}
	switch {
	case !samePublicKey(ca.PublicKey, key.Public()):
		return nil, nil, fmt.Errorf("%s is not the certificate of %s; restore the one that belongs to it", path, keyPath)
	case !ca.IsCA:
		return nil, nil, fmt.Errorf("%s is no CA certificate", path)
	case now.After(ca.NotAfter):
		return nil, nil, fmt.Errorf("%s ended on %s; remove it and %s to begin a new CA, which every client must then be given",
			path, ca.NotAfter.UTC().Format(time.DateOnly), keyPath)
	}
	return ca, key, nil
}

func makeAuthority(path string, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Inband local CA " + hex.EncodeToString(id)},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	return sign(path, template, template, key.Public(), key)
}

func issue(path string, ca *x509.Certificate, caKey, key *ecdsa.PrivateKey, dns []string, ips []net.IP, now time.Time) (*x509.Certificate, error) {
	end := now.Add(serverLife)
	if end.After(ca.NotAfter) {
		end = ca.NotAfter
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Inband gateway"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              dns,
		IPAddresses:           ips,
	}
	return sign(path, template, ca, key.Public(), caKey)
}

func sign(path string, template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	if err := replaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// names are what the gateway is called, sorted.
func names(hosts []string) (dns []string, ips []net.IP) {
	for _, h := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
		if ip := net.ParseIP(hostName(h)); ip != nil {
			ips = append(ips, ip.To16())
		} else {
			dns = append(dns, hostName(h))
		}
	}
	slices.Sort(dns)
	slices.SortFunc(ips, func(a, b net.IP) int { return bytes.Compare(a, b) })
	return slices.Compact(dns), slices.CompactFunc(ips, net.IP.Equal)
}

func sameNames(c *x509.Certificate, dns []string, ips []net.IP) bool {
	return slices.Equal(c.DNSNames, dns) && slices.EqualFunc(c.IPAddresses, ips, net.IP.Equal)
}

func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(*ecdsa.PublicKey)
	return ok && k.Equal(b)
}

func loadCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s is damaged: it is not one PEM certificate; restore or remove it", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; restore or remove it", path, err)
	}
	return c, nil
}

func loadOrMakeKey(path string) (*ecdsa.PrivateKey, error) {
	b, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return nil, err
	}
	damaged := fmt.Errorf("%s is damaged: it is not one PKCS #8 ECDSA key in PEM; restore it, or remove it and the certificate beside it", path)
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, damaged
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, damaged // the parser's error could say something of the key
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, damaged
	}
	return key, nil
}

func makeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return key, replaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// readSecret reads a file that nobody but its owner may be able to read or write.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has the mode %v; a key must be a file of mode 0600: chmod 600 %[1]s", path, mode)
	}
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

// replaceFile writes a file whole or not at all, and durably: a temporary file
// beside it, synced, renamed, and the folder synced.
func replaceFile(path string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// LoadKeyPair returns a certificate that somebody else has issued, with its chain,
// for Serve. It refuses a key that others may read, a pair that does not belong
// together, and a certificate that is not valid now or not for servers.
func LoadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	chain, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	key, err := readSecret(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key: %w", err)
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	now, leaf := time.Now(), cert.Leaf
	switch {
	case now.Before(leaf.NotBefore), now.After(leaf.NotAfter):
		return tls.Certificate{}, fmt.Errorf("%s is valid from %s to %s, and not now", certFile,
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	case len(leaf.ExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny):
		return tls.Certificate{}, fmt.Errorf("%s is not for servers", certFile)
	}
	return cert, nil
}
