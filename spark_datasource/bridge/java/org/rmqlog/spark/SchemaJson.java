package org.rmqlog.spark;

import java.util.Optional;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.util.RawValue;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The metadata of a table's columns as JSON, for scans that do not read those columns. */
final class SchemaJson {
  private SchemaJson() {}

  /** One entry for each column that has metadata; nothing when none has. */
  static Optional<ObjectNode> metadata(StructType schema) {
    ObjectNode columns = JsonNodeFactory.instance.objectNode();
    for (StructField field : schema.fields()) {
      if (!field.metadata().equals(Metadata.empty())) {
        columns.putRawValue(field.name(), new RawValue(field.metadata().json()));
      }
    }
    return columns.isEmpty() ? Optional.empty() : Optional.of(columns);
  }
}
