package org.rmqlog.spark;

import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructType;

/** A column of whole numbers, or of times, which Spark keeps as whole numbers. */
final class WholeNumbers {
  private final int column;
  private final DataType type;
  private final int size;

  /** {@code column} is -1 where the frame has none. */
  WholeNumbers(StructType schema, int column) {
    this.column = column;
    this.type = column < 0 ? DataTypes.NullType : schema.fields()[column].dataType();
    this.size = sizeOf(type);
  }

  int column() {
    return column;
  }

  DataType type() {
    return type;
  }

  /** The number of a row that has one. */
  long get(RowBytes row) {
    return switch (size) {
      case Byte.BYTES -> row.row().getByte(column);
      case Short.BYTES -> row.row().getShort(column);
      case Integer.BYTES -> row.row().getInt(column);
      default -> row.row().getLong(column);
    };
  }

  private static int sizeOf(DataType type) {
    if (type instanceof ByteType) {
      return Byte.BYTES;
    } else if (type instanceof ShortType) {
      return Short.BYTES;
    }
    return type instanceof IntegerType ? Integer.BYTES : Long.BYTES;
  }
}
