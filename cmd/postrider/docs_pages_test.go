package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/sqlitestore"
)

// page is a page of one database, whose commands and statements are run there. Those of the operator's pages are run by
// TestOperatingCommands.
type page struct {
	*testing.T
	name, store string
	query       func(ctx context.Context, sql string) error
	skip        map[string]string // pieces that are not run, with the reason
}

func (p page) run() {
	p.Helper()
	all := pieces(readDoc(p.T, p.name))
	for piece := range p.skip {
		if !slices.Contains(all, piece) {
			p.Errorf("%s does not show %q: remove it from the list", p.name, piece)
		}
	}
	for _, piece := range all {
		named := regexp.MustCompile(`^postrider( [a-z]+)+$`).MatchString(piece) // a command without arguments, in a sentence
		if p.skip[piece] != "" || named || strings.HasPrefix(piece, "postrider relay ") {
			continue // relays run until they are stopped
		}
		words := split(piece)
		if words[0] == "psql" {
			piece, words = words[2], words[2:]
		}
		if words[0] != "postrider" {
			if err := p.query(p.Context(), piece); err != nil {
				p.Errorf("%s: %s: %v", p.name, piece, err)
			}
			continue
		}
		args, env := words[1:], map[string]string{"POSTRIDER_STORE": p.store, "POSTRIDER_BROKER": "memory:", "POSTRIDER_ACTOR": "test"}
		for i, arg := range args {
			if i > 0 && args[i-1] == "--store" {
				args[i] = p.store
			}
			switch arg {
			case "TOPIC":
				args[i] = "orders"
			case "KEY", "WHY":
				args[i] = "o-1"
			case "NAME":
				args[i] = "billing"
			case "ID":
				args[i] = "01890a5d-ac96-774b-bcce-b302099a8057"
			case "FIRST-LAST":
				args[i] = "1-2"
			}
		}
		got := cli(p.T, env, "", args...)
		if got.code != exit.OK && (args[0] != "doctor" || got.code != exit.Findings) {
			p.Errorf("%s: `%s`: exit code %d\n%s%s", p.name, piece, got.code, got.out, got.err)
		}
	}
}

// TestSQLitePage runs what docs/sqlite.md shows.
func TestSQLitePage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", "sqlite:"+file)
	db, err := sqlitestore.OpenDB(file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	page{T: t, name: "sqlite.md", store: "sqlite:" + file, query: func(ctx context.Context, sql string) error {
		_, err := db.ExecContext(ctx, sql)
		return err
	}, skip: map[string]string{
		"VACUUM INTO 'copy.db'": "writes into the working directory",
	}}.run()
}

// TestMySQLPage runs what docs/mysql.md shows.
func TestMySQLPage(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			server := testserver.SharedMySQL(t, version)
			url := server.Database(t)
			page{T: t, name: "mysql.md", store: url, query: func(ctx context.Context, sql string) error {
				_, err := server.Query(ctx, url[strings.LastIndex(url, "/")+1:], sql)
				return err
			}, skip: map[string]string{
				"GRANT 'postrider_relay' TO 'relay'@'%'": "roles belong to the whole server; TestRoles of mysqlstore runs these",
				"SET DEFAULT ROLE ALL TO 'relay'@'%';                 -- MySQL\nSET DEFAULT ROLE 'postrider_relay' FOR 'relay'@'%';  -- MariaDB": "the same",
				"GRANT SELECT ON performance_schema.replication_group_members":                                                                   "a part of a statement",
				"postrider status --consumer billing --store 'mysql://admin@db.example/shop'":                                                    "a consumer that has processed nothing is unknown; TestStatusOfConsumers runs it",
				"postrider adopt event": "the table is the reader's; TestAdoptLayoutsMySQL has one",
			}}.run()
		})
	}
}

// TestPagesOfPostgreSQL runs what the pages of developers show, each on a database of its own.
func TestPagesOfPostgreSQL(t *testing.T) {
	for name, skip := range map[string]map[string]string{
		"consuming.md": {
			"postrider prune --consumer NAME --older-than 720h --broker URL --topic orders": "the broker is the reader's; the tests of admin's horizon ask one",
		},
		"personal-data.md": {},
		"schema.md": {
			"postrider schema check --schemas schemas --against git:origin/main --sarif schema.sarif":                                               "the files are the reader's; schema_check_test.go has some",
			"postrider schema register --schemas schemas --registry https://registry.internal:8081 --subject 'orders-com.acme.{subject}' --dry-run": "the same",
		},
		"waking.md": {
			"psql -c 'ALTER ROLE relay REPLICATION'": "roles belong to the whole server",
		},
		"debezium.md": {},
	} {
		t.Run(name, func(t *testing.T) {
			server := testserver.SharedPostgres(t, "18")
			url := server.Database(t)
			database := url[strings.LastIndex(url, "/")+1:]
			database, _, _ = strings.Cut(database, "?")
			mustCLI(t, "", "migrate", "--store", url)
			mustCLI(t, "", "migrate", "inbox", "--store", url)
			if _, err := server.Query(t.Context(), database, bookConsumer); err != nil {
				t.Fatal(err)
			}
			page{T: t, name: name, store: url, query: func(ctx context.Context, sql string) error {
				_, err := server.Query(ctx, database, sql)
				return err
			}, skip: skip}.run()
		})
	}
}
