// Command gorm uses GORM in the inbox's transaction, over database/sql.
package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

func main() { demo.Main(run) }

// Charge is a row of the business table. It has no unique index on OrderID: nothing but the inbox keeps a second
// charge out.
type Charge struct {
	ID      int64
	OrderID int64
	Cents   int64
}

// onTx gives a session of orm that works in the inbox's transaction. Opening GORM once and taking a session for each
// message is cheaper than gorm.Open on the transaction.
func onTx(ctx context.Context, orm *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := orm.Session(&gorm.Session{
		NewDB:                  true,
		Context:                ctx,  // also what keeps the next line away from orm itself
		SkipDefaultTransaction: true, // GORM would begin one around every write
	})
	session.Statement.ConnPool = tx
	return session
}

// charger has the handler. Inside it, session.Transaction(…) is a savepoint; never Commit or Rollback the session.
type charger struct{ orm *gorm.DB }

func (c charger) charge(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	order, err := demo.ParseOrder(msg)
	if err != nil {
		return err
	}
	return onTx(ctx, c.orm, tx).Create(&Charge{OrderID: order.ID, Cents: order.Cents}).Error
}

func run(ctx context.Context, databaseURL string) error {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // everything is committed
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		return err
	}
	if err := orm.WithContext(ctx).AutoMigrate(&Charge{}); err != nil {
		return err
	}

	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.PostgreSQL, InitializeSchema: true})
	if err != nil {
		return err
	}
	in, err := inbox.New(store, inbox.Config{Namespace: "shop", Observer: demo.Print, Logger: demo.Logger()})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, demo.Logger())
	if err != nil {
		return err
	}
	broker := demo.NewBroker()
	router.AddMiddleware(in.Middleware)
	router.AddConsumerHandler("charge", demo.Topic, broker, sqlinbox.ConsumerHandler(charger{orm}.charge))

	if err := broker.Deliver(ctx, router); err != nil {
		return err
	}
	var charged []int64
	if err := orm.WithContext(ctx).Model(&Charge{}).Order("order_id").Pluck("order_id", &charged).Error; err != nil {
		return err
	}
	return broker.Prove(charged)
}
