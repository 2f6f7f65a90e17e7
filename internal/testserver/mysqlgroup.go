package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// MySQLGroup is three members of MySQL Group Replication with one primary.
type MySQLGroup struct {
	Members []*MySQL
	URL     string // of a database, with all members, as a user whom read_only binds
}

// StartMySQLGroup starts a group for one test, with an empty database.
func StartMySQLGroup(tb TB) *MySQLGroup {
	tb.Helper()
	ctx := context.Background()
	ports := make([]int, 3)
	if err := launch(len(ports), func(free []int) error { copy(ports, free); return nil }); err != nil {
		tb.Fatalf("%v", err)
	}
	var seeds, hosts []string
	for _, port := range ports {
		seeds = append(seeds, addr(port))
	}
	member := func(i int) Option {
		return WithConfig(fmt.Sprint("server-id=", i+1), "read_only=1", "report-host=127.0.0.1", "plugin-load-add=group_replication.so",
			"loose-group_replication_group_name=aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "loose-group_replication_start_on_boot=OFF",
			"loose-group_replication_local_address="+seeds[i], "loose-group_replication_group_seeds="+strings.Join(seeds, ","),
			"loose-group_replication_recovery_get_public_key=ON", "loose-group_replication_bootstrap_group=OFF")
	}
	g := &MySQLGroup{}
	first := StartMySQL(tb, MySQL9, member(0))
	g.Members = append(g.Members, first)
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("%v", err)
		}
	}
	check(first.run(ctx, "set global read_only = 0", "create database shop", "create user app@'%' identified by 'word'", "grant all on shop.* to app@'%'",
		"grant process on *.* to app@'%'", "grant select on performance_schema.replication_group_members to app@'%'",
		"change replication source to source_user = 'root' for channel 'group_replication_recovery'"))
	check(first.Stop())
	for i := 1; i < len(ports); i++ {
		home, err := os.MkdirTemp(first.Dir, "member")
		check(err)
		check(os.Chmod(home, 0o755))
		check(copyData(first, home))
		m, err := LaunchMySQL(ctx, MySQL9, home, member(i))
		check(err)
		m.attach(tb)
		g.Members = append(g.Members, m)
	}
	check(first.Restart())
	check(first.run(ctx, "set global group_replication_bootstrap_group = ON", "start group_replication", "set global group_replication_bootstrap_group = OFF"))
	for _, m := range g.Members[1:] {
		check(g.Join(ctx, m))
	}
	for _, m := range g.Members {
		hosts = append(hosts, addr(m.Port))
	}
	g.URL = "mysql://app:word@" + strings.Join(hosts, ",") + "/shop"
	return g
}

// Join lets a member that was started join its group, and waits until it is in.
func (g *MySQLGroup) Join(ctx context.Context, m *MySQL) error {
	if err := m.run(ctx, "start group_replication"); err != nil {
		return err
	}
	return until(ctx, "a member is online", func() (bool, error) {
		rows, err := m.Query(ctx, "", "select count(*) from performance_schema.replication_group_members where member_id = @@server_uuid and member_state = 'ONLINE'")
		return err == nil && rows[0][0] == "1", err
	})
}

// Primary returns the primary as one of the living members sees it.
func (g *MySQLGroup) Primary(ctx context.Context) (primary *MySQL, err error) {
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
