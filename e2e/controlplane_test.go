package e2e

import (
	"net"
	"net/url"
	"testing"
	"time"
)

func TestTheControlPlaneListensOnItsLoopbackAddressAlone(t *testing.T) {
	api, err := url.Parse(adminConfig.Host)
	if err != nil {
		t.Fatal(err)
	}
	others := []string{"127.0.0.2"} // of this machine too, on Linux
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			others = append(others, ip.IP.String())
		}
	}
	for name, u := range map[string]*url.URL{"kube-apiserver": api, "etcd": controlPlane.ControlPlane.Etcd.URL} {
		if ip := net.ParseIP(u.Hostname()); !ip.IsLoopback() {
			t.Errorf("%s is at %s", name, u.Host)
		}
		for _, other := range others {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(other, u.Port()), time.Second)
			if err == nil {
				conn.Close()
				t.Errorf("%s listens on %s too", name, conn.RemoteAddr())
			}
		}
	}
}
