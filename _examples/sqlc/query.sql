-- name: AddCharge :exec
INSERT INTO charges (order_id, cents) VALUES ($1, $2);

-- name: ListCharged :many
SELECT order_id FROM charges ORDER BY order_id;
