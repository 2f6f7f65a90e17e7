package mysqlha

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/postrider/postrider/internal/testserver"
)

// Group is three members of MySQL Group Replication with one primary.
type Group struct {
	Members []*testserver.MySQL
	URL     string // of a database, with all members, as a user whom read_only binds
}

// StartGroup starts a group for one test, with an empty database.
func StartGroup(tb testserver.TB) *Group {
	tb.Helper()
	ctx := context.Background()
	ports := make([]int, 3)
	var taken []net.Listener
	for i := range ports {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			tb.Fatalf("%v", err)
		}
		ports[i] = l.Addr().(*net.TCPAddr).Port
		taken = append(taken, l)
	}
	for _, l := range taken {
		_ = l.Close()
	}
	var seeds, hosts []string
	for _, port := range ports {
		seeds = append(seeds, fmt.Sprintf("127.0.0.1:%d", port))
	}
	member := func(i int) testserver.Option {
		return testserver.WithConfig(fmt.Sprint("server-id=", i+1), "read_only=1", "report-host=127.0.0.1", "plugin-load-add=group_replication.so",
			"loose-group_replication_group_name=aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "loose-group_replication_start_on_boot=OFF",
			"loose-group_replication_local_address="+seeds[i], "loose-group_replication_group_seeds="+strings.Join(seeds, ","),
			"loose-group_replication_recovery_get_public_key=ON", "loose-group_replication_bootstrap_group=OFF")
	}
	g := &Group{}
	first := testserver.StartMySQL(tb, testserver.MySQL9, member(0))
	g.Members = append(g.Members, first)
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("%v", err)
		}
	}
	check(run(ctx, first, "set global read_only = 0", "create database shop", "create user app@'%' identified by 'word'", "grant all on shop.* to app@'%'",
		"grant process on *.* to app@'%'", "grant select on performance_schema.replication_group_members to app@'%'",
		"change replication source to source_user = 'root' for channel 'group_replication_recovery'"))
	check(first.Stop())
	for i := 1; i < len(ports); i++ {
		home, err := os.MkdirTemp(first.Dir, "member")
		check(err)
		check(os.Chmod(home, 0o755))
		check(copyData(first, home))
		m, err := testserver.LaunchMySQL(ctx, testserver.MySQL9, home, member(i))
		check(err)
		closeAtEnd(tb, m)
		g.Members = append(g.Members, m)
	}
	check(first.Restart())
	check(run(ctx, first, "set global group_replication_bootstrap_group = ON", "start group_replication", "set global group_replication_bootstrap_group = OFF"))
	for _, m := range g.Members[1:] {
		check(g.Join(ctx, m))
	}
	for _, m := range g.Members {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", m.Port))
	}
	g.URL = "mysql://app:word@" + strings.Join(hosts, ",") + "/shop"
	return g
}

// Join lets a member that was started join its group, and waits until it is in.
func (g *Group) Join(ctx context.Context, m *testserver.MySQL) error {
	if err := run(ctx, m, "start group_replication"); err != nil {
		return err
	}
	return until(ctx, "a member is online", func() (bool, error) {
		rows, err := m.Query(ctx, "", "select count(*) from performance_schema.replication_group_members where member_id = @@server_uuid and member_state = 'ONLINE'")
		return err == nil && rows[0][0] == "1", err
	})
}

// Primary returns the primary as one of the living members sees it.
func (g *Group) Primary(ctx context.Context) (primary *testserver.MySQL, err error) {
	err = until(ctx, "there is a primary", func() (bool, error) {
		var errs []error
		for _, m := range g.Members {
			rows, err := m.Query(ctx, "", "select count(*) from performance_schema.replication_group_members where member_id = @@server_uuid and member_state = 'ONLINE' and member_role = 'PRIMARY'")
			errs = append(errs, err)
			if err == nil && rows[0][0] == "1" {
				primary = m
				return true, nil
			}
		}
		return false, errors.Join(errs...)
	})
	return primary, err
}
