package org.rmqlog.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * The row at hand as the bytes that Spark keeps it in, so that texts and bodies are read where
 * they lie: an object for each of them would take longer than to copy it.
 */
final class RowBytes {
  private final StructType schema;
  private UnsafeProjection projection;
  private UnsafeRow row;
  private byte[] bytes;
  private int base;

  RowBytes(StructType schema) {
    this.schema = schema;
  }

  void set(InternalRow given) {
    UnsafeRow unsafe = given instanceof UnsafeRow known ? known : toUnsafe(given);
    row = unsafe.getBaseObject() instanceof byte[] ? unsafe : unsafe.copy();
    bytes = (byte[]) row.getBaseObject();
    base = (int) (row.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
  }

  private UnsafeRow toUnsafe(InternalRow given) {
    if (projection == null) {
      projection = UnsafeProjection.create(schema);
    }
    return projection.apply(given);
  }

  UnsafeRow row() {
    return row;
  }

  byte[] bytes() {
    return bytes;
  }

  /** Whether the row has nothing there; {@code column} is -1 where the frame has none. */
  boolean isAbsent(int column) {
    return column < 0 || row.isNullAt(column);
  }

  /** How many bytes a text or binary value has; 0 where it is absent. */
  int size(int column) {
    return isAbsent(column) ? 0 : (int) row.getLong(column);
  }

  /** Where in the bytes a value begins that is not absent. */
  int start(int column) {
    // A row keeps a value's place in the upper half of a word, and its size in the lower one.
    return base + (int) (row.getLong(column) >>> Integer.SIZE);
  }
}
