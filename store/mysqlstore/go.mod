module github.com/postrider/postrider/store/mysqlstore

go 1.25.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/postrider/postrider v0.0.0
)

require filippo.io/edwards25519 v1.2.0 // indirect
