package org.rmqlog.spark;

import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeMap;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.sql.connector.read.Statistics;

/** What Python says about a planned scan. Nothing here can fail a query. */
final class ScanReport implements Statistics {
  static final ScanReport NONE = new ScanReport("{}", new ObjectMapper().createObjectNode());

  private final String json;
  private final JsonNode tree;

  private ScanReport(String json, JsonNode tree) {
    this.json = json;
    this.tree = tree;
  }

  /** Finds the report in a pickled partition. */
  static ScanReport find(byte[] pickled) {
    return PickledText.find(pickled, "rmqlog-report").map(ScanReport::of).orElse(NONE);
  }

  private static ScanReport of(String json) {
    try {
      JsonNode tree = new ObjectMapper().readTree(json);
      return tree.isObject() ? new ScanReport(json, tree) : NONE;
    } catch (JsonProcessingException malformed) {
      return NONE;
    }
  }

  String json() {
    return json;
  }

  String description() {
    return tree.path("description").asText("(no report)");
  }

  /** Lines of a formatted explain. */
  Map<String, String> details() {
    Map<String, String> details = new TreeMap<>();
    tree.path("details").properties()
        .forEach(entry -> details.put(entry.getKey(), entry.getValue().asText()));
    return details;
  }

  /** Numbers for Spark's SQL page. */
  Map<String, Long> metrics() {
    Map<String, Long> metrics = new TreeMap<>();
    tree.path("metrics").properties()
        .forEach(entry -> metrics.put(entry.getKey(), entry.getValue().asLong()));
    return metrics;
  }

  @Override
  public OptionalLong sizeInBytes() {
    return number("bytes");
  }

  @Override
  public OptionalLong numRows() {
    return number("rows");
  }

  private OptionalLong number(String key) {
    JsonNode value = tree.path(key);
    return value.isIntegralNumber() ? OptionalLong.of(value.asLong()) : OptionalLong.empty();
  }
}
